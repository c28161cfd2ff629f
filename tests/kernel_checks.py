"""What `test_triton` asks of the kernels beside values and gradients, run in their process."""

from __future__ import annotations

import numpy as np
import torch
from drawing import Inputs
from kernel_process import Found, array, fused, tensor, tensors


def fused_of_strided_rows(inputs: Inputs, dy: np.ndarray, dstate: np.ndarray) -> Found:
    """q, k and v as slices of one projection, dy with its dimensions stored in another order."""

    def strided(function):
        def on_slices(q, k, v, log_decay, state, cuts):
            q, k, v = torch.cat([q, k, v], dim=2).chunk(3, dim=2)
            y, state = function(q, k, v, log_decay.mT.contiguous().mT, state.mT.clone().mT, cuts)
            return y.movedim(1, 2).contiguous().movedim(2, 1), state

        return on_slices

    return fused(inputs, dy, dstate, wrap=strided)


def gradients_of_one_output(
    inputs: Inputs, used: int, cotangent: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Gradients where the loss has only y (0) or only the final state (1) in it."""
    from mlx_pam.torch.ops.retrieval import retrieve

    leaves = [leaf.requires_grad_() for leaf in tensors(inputs)]
    output = retrieve(*leaves, form="fused")[used]
    gradients = torch.autograd.grad(output, leaves, tensor(cotangent), materialize_grads=True)
    return tuple(map(array, gradients))


def compiled(function):
    """In one graph, forward and backward, without generated code."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def check_operators(inputs: Inputs) -> None:
    """Schema, shapes without data, autograd and tracing, as PyTorch itself checks them."""
    from mlx_pam.torch.kernels import operator

    leaves = tensors(inputs)
    for leaf in leaves:
        leaf.requires_grad_()
    torch.library.opcheck(operator.retrieve, tuple(leaves))
