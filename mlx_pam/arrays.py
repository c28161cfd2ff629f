"""NumPy arrays by name <-> a model's MLX arrays."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def named_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Copies of the model's weights by name."""
    return {name: np.array(value) for name, value in tree_flatten(model.trainable_parameters())}


def set_weights(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Put named weights, already checked against `parameter_table`, into the model."""
    model.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))
    mx.eval(model.parameters())


def to_numpy(x: mx.array) -> np.ndarray:
    """float32, on the host."""
    return np.array(x.astype(mx.float32))
