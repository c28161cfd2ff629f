"""The kernels as one differentiable operator, which `torch.compile` takes in one piece.

B batch   T time   H heads   d head width   P planes: 2 complex, 1 real   C tokens of a chunk
q, k, v, y [B, T, H, (2,) d]   log_decay [B, T, H] float32   state [B, H, (2,) d, d] float32
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlx_pam.torch.kernels.chunks import chunk_outputs, chunk_states
from mlx_pam.torch.kernels.gradients import chunk_gradients
from mlx_pam.torch.kernels.step import token_step


class Tiles(NamedTuple):
    """Tokens of a chunk, channels taken at once, warps of a program: one for every 16 tokens."""

    chunk: int
    block: int
    warps: int


class Arithmetic(NamedTuple):
    """How inputs of one type are multiplied, in what tiles: complex heads of 64 spill nothing.

    `benchmarks/triton_kernels.py` prints what every kernel takes.
    """

    operand: tl.dtype
    precision: str
    forward: Tiles
    backward: Tiles


ARITHMETIC = {
    # three products of TF32 parts are one of float32, to 2^-21 of it
    torch.float32: Arithmetic(tl.float32, "tf32x3", Tiles(32, 16, 2), Tiles(16, 16, 1)),
    # TF32 has the digits of float16, and room for a large state
    torch.float16: Arithmetic(tl.float32, "tf32", Tiles(32, 16, 2), Tiles(32, 16, 2)),
    torch.bfloat16: Arithmetic(tl.bfloat16, "tf32", Tiles(64, 32, 4), Tiles(64, 16, 4)),
}

# Chunks follow one another in the scan: what runs at once are the blocks of the state, so small.
SCAN_BLOCK = 16
# Entries of the state that one warp updates in a step, 16 a thread.
STEP_ENTRIES = 512


def chunk_settings(dtype: torch.dtype, planes: int, d: int, tiles: Tiles) -> dict[str, Any]:
    """Constants and launch options of `chunk_outputs` and `chunk_gradients`."""
    operand, precision, *_ = ARITHMETIC[dtype]
    shape = {"D": d, "PLANES": planes, "C": tiles.chunk, "BLOCK": min(tiles.block, max(d, 16))}
    arithmetic = {"OPERAND": operand, "PRECISION": precision}
    return shape | arithmetic | {"num_warps": tiles.warps, "num_stages": 1}


def scan_settings(
    dtype: torch.dtype, planes: int, d: int, tiles: Tiles, reverse: bool
) -> dict[str, Any]:
    """Constants and launch options of `chunk_states`."""
    scan = {"BLOCK": SCAN_BLOCK, "REVERSE": reverse, "num_warps": 1, "num_stages": 2}
    return chunk_settings(dtype, planes, d, tiles) | scan


def step_settings(planes: int, d: int) -> dict[str, Any]:
    """Constants and launch options of `token_step`."""
    return {"D": d, "PLANES": planes, "ROWS": min(d, STEP_ENTRIES // d), "num_warps": 1}


def _planes(q: Tensor) -> int:
    return 2 if q.ndim == 5 else 1


def _launch_states(left, right, log_decay, first, tiles, reverse=False):
    """states `[B, H, n, (2,) d, d]` at the borders of the chunks, and the last one."""
    batch, time, heads, *_, d = left.shape
    n = triton.cdiv(time, tiles.chunk)
    states = first.new_empty((*first.shape[:2], n, *first.shape[2:]))
    last = torch.empty_like(first)
    settings = scan_settings(left.dtype, _planes(left), d, tiles, reverse)
    programs = batch * heads * triton.cdiv(d, SCAN_BLOCK) ** 2
    chunk_states[(programs,)](
        left, right, log_decay, first, states, last, time, heads, n, **settings
    )
    return states, last


def _launch_step(q, k, v, log_decay, state, new_state):
    y = torch.empty_like(q)
    batch, _, heads, *_, d = q.shape
    settings = step_settings(_planes(q), d)
    programs = batch * heads * (d // settings["ROWS"])
    token_step[(programs,)](q, k, v, log_decay, state, new_state, y, **settings)
    return y


@torch.library.custom_op(
    "mlx_pam::retrieve",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor state) -> (Tensor, Tensor)",
)
def retrieve(q, k, v, log_decay, state):
    """y and S_T, as `mlx_pam.torch.ops.retrieval.retrieve` defines them."""
    q, k, v, log_decay, state = (x.contiguous() for x in (q, k, v, log_decay, state))
    batch, time, heads, *_, d = q.shape
    with torch.cuda.device_of(q):
        if time == 1:
            last = torch.empty_like(state)
            return _launch_step(q, k, v, log_decay, state, last), last
        tiles = ARITHMETIC[q.dtype].forward
        states, last = _launch_states(v, k, log_decay, state, tiles)
        y = torch.empty_like(q)
        n = states.shape[2]
        settings = chunk_settings(q.dtype, _planes(q), d, tiles)
        chunk_outputs[(batch * heads * n,)](
            q, k, v, log_decay, states, y, time, heads, n, **settings
        )
    return y, last


@retrieve.register_fake
def _(q, k, v, log_decay, state):
    return q.new_empty(q.shape), state.new_empty(state.shape)


@torch.library.custom_op(
    "mlx_pam::retrieve_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor state, Tensor dy, "
    "Tensor dstate) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def retrieve_backward(q, k, v, log_decay, state, dy, dstate):
    """Gradients of <dy, y> + <dstate, S_T>; the states are computed again, not kept since then."""
    arrays = (x.contiguous() for x in (q, k, v, log_decay, state, dy, dstate))
    q, k, v, log_decay, state, dy, dstate = arrays
    batch, time, heads, *_, d = q.shape
    tiles = ARITHMETIC[q.dtype].backward
    with torch.cuda.device_of(q):
        states, _ = _launch_states(v, k, log_decay, state, tiles)
        adjoints, dfirst = _launch_states(dy, q, log_decay, dstate, tiles, reverse=True)
        gradients = [torch.empty_like(x) for x in (q, k, v, log_decay)]
        n = states.shape[2]
        settings = chunk_settings(q.dtype, _planes(q), d, tiles)
        chunk_gradients[(batch * heads * n,)](
            q, k, v, log_decay, dy, states, adjoints, *gradients, time, heads, n, **settings
        )
    return *gradients, dfirst


@retrieve_backward.register_fake
def _(q, k, v, log_decay, state, dy, dstate):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, log_decay, state))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, dy, dstate):
    return retrieve_backward(*ctx.saved_tensors, dy, dstate)


retrieve.register_autograd(_differentiate, setup_context=_keep)
