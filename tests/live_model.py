"""A backend's own model on NumPy arrays: what tests ask of it beyond its learner and decoder."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_pam.backend import Backend


def tensor(backend: Backend, model: Any, x: np.ndarray) -> Any:
    """The array in the backend's library, where the model is."""
    if backend.name == "mlx":
        return mx.array(x)
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(model.embedding.weight.device)


def numpy(x: Any) -> np.ndarray:
    """A backend's array as NumPy's."""
    return np.array(x) if isinstance(x, mx.array) else x.detach().cpu().numpy()


def logits(backend: Backend, model: Any, ids: np.ndarray, **form: str) -> np.ndarray:
    """`[B, T]` ids of texts from their beginning -> `[B, T, V]`."""
    return numpy(_logits(backend, model, ids, **form))


def gradients(
    backend: Backend, model: Any, ids: np.ndarray, dlogits: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradients of <dlogits, logits> with respect to every weight, by name."""
    dlogits = tensor(backend, model, dlogits)
    if backend.name == "mlx":

        def loss(parameters: Any) -> mx.array:
            model.update(parameters)
            return (_logits(backend, model, ids) * dlogits).sum()

        found = tree_flatten(mx.grad(loss)(model.trainable_parameters()))
    else:
        (_logits(backend, model, ids) * dlogits).sum().backward()
        found = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return {name: numpy(gradient) for name, gradient in found}


def _logits(backend: Backend, model: Any, ids: np.ndarray, **form: str) -> Any:
    phases = model.phases(np.arange(ids.shape[1]))
    hidden, _ = model.hidden(tensor(backend, model, ids), phases, **form)
    x, table = model.embedding.head(hidden)
    return x @ table.T
