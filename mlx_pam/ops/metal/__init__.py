"""The fused form of the memory: Metal kernels for Apple GPUs, which keep scores in registers."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mlx_pam.errors import ConfigError
from mlx_pam.ops.metal import operator

WIDTHS = range(8, 129, 8)
DTYPES = (mx.float32, mx.float16, mx.bfloat16)


def available() -> bool:
    """Whether kernels run here: there is Metal, and the GPU is the default device."""
    return mx.metal.is_available() and mx.default_device() == mx.gpu


def unsupported(q: mx.array, k: mx.array, v: mx.array) -> str | None:
    """Why the kernels cannot take q, k and v, None if they can."""
    if not available():
        return f"needs an Apple GPU as MLX's default device, got {mx.default_device()}"
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        names = [str(x.dtype).removeprefix("mlx.core.") for x in (q, k, v)]
        return f"takes q, k and v in float32, float16 or bfloat16, all in one, got {names}"
    if q.shape[-1] > WIDTHS[-1]:
        return f"takes d up to {WIDTHS[-1]}, got {q.shape[-1]}"
    return None


def fused(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The dual form inside chunks, the state carried between them, in kernels; differentiable.

    Arguments as in `mlx_pam.ops.retrieval.FORMS`. A d that is no multiple of 8 is padded with
    channels of zeros, which is exact. Raises `ConfigError` where it cannot run.
    """
    if reason := unsupported(q, k, v):
        raise ConfigError(f'form="fused" {reason}')
    return padded(operator.retrieve, q, k, v, log_decay, state)


def padded(
    retrieve: Callable, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """`retrieve` at the next width that the kernels have: y and S_T of the channels that count."""
    d = q.shape[-1]
    more = next(width for width in WIDTHS if width >= d) - d
    if more:
        q, k, v = (mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) for x in (q, k, v))
        state = mx.pad(state, [(0, 0)] * (state.ndim - 2) + [(0, more)] * 2)
    y, last = retrieve(q, k, v, log_decay, state)
    return (y[..., :d], last[..., :d, :d]) if more else (y, last)
