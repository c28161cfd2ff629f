"""The kernels as one differentiable operator.

B batch   T time   H heads   d head width
q, k, v, y [B, T, H, (2,) d]   log_decay [B, T, H] float32   state [B, H, (2,) d, d] float32

Every array is an argument: one that a custom function takes from outside would get no gradient.
"""

from __future__ import annotations

import mlx.core as mx

from mlx_pam.ops.metal import launch

# Up to so many tokens, one after the other in one kernel: two launches, and the scores of a chunk
# that they do not fill, would take longer.
FEW_TOKENS = launch.CHUNK


def forward(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """y and S_T, as `mlx_pam.ops.retrieval.retrieve` defines them."""
    if q.shape[1] <= FEW_TOKENS:
        return tuple(launch.token_steps(q, k, v, log_decay, state))
    return in_chunks(q, k, v, log_decay, state)


def in_chunks(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The same for any T: the states between chunks first, then what the tokens read of them."""
    states, last = launch.chunk_states(v, k, log_decay, state)
    return launch.chunk_outputs(q, k, v, log_decay, states), last


def backward(
    primals: tuple[mx.array, ...], cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> tuple[mx.array, ...]:
    """Gradients of <dy, y> + <dS_T, S_T>, for any T, however few.

    The states between chunks are computed again: kept, they would weigh d/32 times what q does.
    """
    q, k, v, log_decay, state = primals
    dy, dlast = cotangents
    states, _ = launch.chunk_states(v, k, log_decay, state)
    adjoints, dfirst = launch.chunk_states(dy, q, log_decay, dlast, reverse=True)
    rows = launch.chunk_gradients(q, k, v, log_decay, dy, states, adjoints)
    return (*rows, dfirst)


retrieve = mx.custom_function(forward)
retrieve.vjp(backward)
