"""The fused form of the memory: Triton kernels for NVIDIA GPUs, which keep scores in registers.

With TRITON_INTERPRET=1 in the environment they run on any CPU, slowly: that is how they are tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mlx_pam.errors import BackendError

WIDTHS = (8, 16, 32, 64, 128)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _absence() -> str | None:
    """Why the kernels cannot run in this process, None if they can."""
    devices = range(torch.cuda.device_count() if torch.version.cuda else 0)
    able = devices and min(map(torch.cuda.get_device_capability, devices)) >= (8, 0)
    if not (able or INTERPRETED):
        return "needs an NVIDIA GPU of compute capability 8.0 or later"
    try:
        import triton
    except ImportError:
        return "needs the package triton"
    # the kernels rest on reverse sums, reported wrong in earlier releases
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 6):
        return f"needs triton 3.6 or later, got {triton.__version__}"
    return None


ABSENCE = _absence()
if ABSENCE is None:
    from mlx_pam.torch.kernels import operator


def obstacle(q: Tensor) -> str | None:
    """Why the kernels cannot take inputs like q, None if they can."""
    if ABSENCE is not None:
        return ABSENCE
    if not (q.is_cuda or INTERPRETED):
        return f"needs tensors on an NVIDIA GPU, got {q.device.type}"
    if q.dtype not in DTYPES:
        return f"takes {', '.join(map(str, DTYPES))}, got {q.dtype}"
    if q.shape[-1] > WIDTHS[-1]:
        return f"takes d up to {WIDTHS[-1]}, got {q.shape[-1]}"
    return None


def fused(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The dual form inside chunks, the state carried between them, in kernels; differentiable.

    Arguments as in `mlx_pam.torch.ops.retrieval.FORMS`. A d that is no power of two from 8 on is
    padded with channels of zeros, which is exact. Raises `BackendError` where it cannot run.
    """
    if reason := obstacle(q):
        raise BackendError(f'form="fused" {reason}')
    return padded(operator.retrieve, q, k, v, log_decay, state)


def padded(
    retrieve: Callable, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`retrieve` at the next width that the kernels have: y and S_T of the channels that count."""
    d = q.shape[-1]
    more = next(width for width in WIDTHS if width >= d) - d
    if more:
        q, k, v = (F.pad(x, (0, more)) for x in (q, k, v))
        state = F.pad(state, (0, more, 0, more))
    y, last = retrieve(q, k, v, log_decay, state)
    return (y[..., :d], last[..., :d, :d]) if more else (y, last)
