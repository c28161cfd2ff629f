"""How the kernels are built and launched: template arguments, threadgroups and grids.

B batch   T time   H heads   d head width   P planes: 2 complex, 1 real   C tokens of a chunk
q, k, v, y [B, T, H, (2,) d]   log_decay [B, T, H] float32   states [B, H, n, (2,) d, d] float32
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import Any, NamedTuple

import mlx.core as mx

# C. Fewer tokens carry a state to and fro too often, more compute scores that are too wide: by
# operations and bytes 32 is the best for d = 16 and 64 alike. A simdgroup takes 8 of them and keeps
# their scores in registers, 2 C/8 a plane.
CHUNK = 32

# Channels that pass through threadgroup memory at once: 8.5 KB in complex float32, so that several
# threadgroups fit on a core. The sums over them take 2 SLAB/8 registers a plane.
WIDEST_SLAB = 32

# Simdgroups that are a threadgroup at most: what 256 threads need of registers is always there.
WIDEST_GROUP = 8

# Rows of a head's state that a simdgroup keeps in `token_steps`: few, since decoding one text has
# no more than H d rows to share out, and enough to sum up over lanes together.
STEP_ROWS = 4

# MLX hands smaller arrays to a kernel in another address space, which makes another source of it.
SMALL = 8


class Signature(NamedTuple):
    """What a kernel reads and what it writes; the names stand in its source."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


SIGNATURES = {
    "chunk_states": Signature(("left", "right", "log_decay", "first"), ("states", "last")),
    "chunk_outputs": Signature(("q", "k", "v", "log_decay", "states"), ("y",)),
    "chunk_gradients": Signature(
        ("q", "k", "v", "log_decay", "dy", "states", "adjoints"), ("dq", "dk", "dv", "dlog_decay")
    ),
    "token_steps": Signature(("q", "k", "v", "log_decay", "state"), ("y", "new_state")),
}


def text(name: str) -> str:
    """The Metal source that lies beside this file under that name."""
    return (resources.files(__package__) / f"{name}.metal").read_text("ascii")  # all MLX compiles


@functools.cache
def build(name: str, signature: Signature | None = None, header: str = "tiles") -> Any:
    """A kernel, of `SIGNATURES` or not, once a process; MLX compiles it for each set of constants.

    It takes arrays in rows without gaps: MLX copies those that lie otherwise. The layers make none
    such, and a kernel that read through strides would read every number of the others slower.
    """
    signature = signature or SIGNATURES[name]
    return mx.fast.metal_kernel(
        name=f"mlx_pam_{name}",
        input_names=list(signature.inputs),
        output_names=list(signature.outputs),
        source=text(name),
        header=text(header),
    )


def slab(d: int) -> int:
    """Channels staged at once: they must divide d."""
    return max(width for width in range(8, WIDEST_SLAB + 1, 8) if d % width == 0)


def constants(q: mx.array, log_decay: mx.array, **more: int) -> list[tuple[str, Any]]:
    """Template arguments: all that the source of a kernel depends on.

    MLX knows a compiled kernel by their values: with one of them left out, two sources would take
    each other's place, and be compiled again, at every change between them.
    """
    return [
        ("Element", q.dtype),
        ("D", q.shape[-1]),
        ("PLANES", 2 if q.ndim == 5 else 1),
        ("SMALL", log_decay.size < SMALL),
        *more.items(),
    ]


def chunk_states(
    left: mx.array, right: mx.array, log_decay: mx.array, first: mx.array, reverse: bool = False
) -> tuple[mx.array, mx.array]:
    """States `[B, H, n, (2,) d, d]` at the borders of the chunks, and the last one.

    Chunks follow one another, so what runs at once are blocks of the state: small ones, 16 x 16 or
    8 x 8. Blocks that are neighbours share a threadgroup, and with it what they read of `left`.
    """
    batch, time, heads, *_, d = left.shape
    block = 16 if d % 16 == 0 else 8
    side = d // block
    group = max(n for n in range(1, WIDEST_GROUP + 1) if side % n == 0)
    n = -(-time // CHUNK)
    return build("chunk_states")(
        inputs=[left, right, log_decay, first],
        template=constants(left, log_decay, C=CHUNK, BLOCK=block, GROUP=group, REVERSE=reverse),
        grid=(32 * side**2, heads, batch),
        threadgroup=(32 * group, 1, 1),
        output_shapes=[(*first.shape[:2], n, *first.shape[2:]), first.shape],
        output_dtypes=[mx.float32, mx.float32],
    )


def chunk_outputs(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, states: mx.array
) -> mx.array:
    """y, `[B, T, H, (2,) d]`, from the states before each chunk."""
    return _over_chunks("chunk_outputs", [q, k, v, log_decay, states], [q])[0]


def chunk_gradients(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    dy: mx.array,
    states: mx.array,
    adjoints: mx.array,
) -> list[mx.array]:
    """Gradients of q, k, v and log_decay, from the states before and the adjoints after a chunk."""
    inputs = [q, k, v, log_decay, dy, states, adjoints]
    return _over_chunks("chunk_gradients", inputs, [q, k, v, log_decay])


def _over_chunks(name: str, inputs: list[mx.array], like: list[mx.array]) -> list[mx.array]:
    """A threadgroup for every chunk of every head, a simdgroup for every 8 of its tokens."""
    q, _, _, log_decay, *_ = inputs
    batch, time, heads, *_, d = q.shape
    threads = CHUNK // 8 * 32
    return build(name)(
        inputs=inputs,
        template=constants(q, log_decay, C=CHUNK, SLAB=slab(d)),
        grid=(threads * -(-time // CHUNK), heads, batch),
        threadgroup=(threads, 1, 1),
        output_shapes=[x.shape for x in like],
        output_dtypes=[x.dtype for x in like],
    )


def token_steps(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """y and the state after all tokens, taken in one by one.

    As many lanes share a row as their number, a power of 2 for the sums over them, divides d.
    """
    batch, _, heads, *_, d = q.shape
    return build("token_steps")(
        inputs=[q, k, v, log_decay, state],
        template=constants(q, log_decay, LANES=math.gcd(d, 32)),
        grid=(32, d // STEP_ROWS, batch * heads),
        threadgroup=(32, 2, 1),  # d / 4 is even
        output_shapes=[q.shape, state.shape],
        output_dtypes=[q.dtype, mx.float32],
    )
