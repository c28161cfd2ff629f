"""NumPy arrays by name <-> a model's tensors, which may be divided among processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from mlx_pam.parameters import parameter_table
from mlx_pam.torch import distributed
from mlx_pam.torch.models import Model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def named_arrays(model: Model, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, np.ndarray]:
    """Copies, float32, of tensors that have the names and shapes of the weights.

    Every process has to ask, since shards are put together; the main one gets the arrays.
    """
    table, arrays = parameter_table(model.config), {}
    for name, tensor in tensors:
        array = distributed.whole(tensor.detach())
        if distributed.is_main():
            arrays[name] = to_numpy(array).copy().reshape(table[name].shape)
    return arrays


def named_weights(model: Model) -> dict[str, np.ndarray]:
    """Copies of the model's weights by name."""
    return named_arrays(model, distributed.parameters(model))


def set_weights(model: Model, weights: Mapping[str, np.ndarray]) -> None:
    """Put named weights, already checked against `parameter_table`, into the model."""
    with torch.no_grad():
        for name, parameter in distributed.parameters(model):
            parameter.copy_(tensor_like(weights[name], parameter))


def tensor_like(array: np.ndarray, other: Tensor) -> Tensor:
    """A tensor with the array's numbers that lies where `other` does."""
    return distributed.like(torch.from_numpy(np.array(array)), other)


def to_numpy(x: Tensor) -> np.ndarray:
    """float32, on the host."""
    return x.detach().float().cpu().numpy()
