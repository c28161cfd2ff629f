"""One token through the layers in few kernels: how they are launched.

B texts, few   P planes: 2 complex, 1 real   D width   M rows of a map   H heads   d head width
Vectors are float32, `[B, (2,) D]`; weights are float32, float16 or bfloat16, all of one type. Sums
and states are float32 whatever the weights are.

A decoded token is bound by the bytes of the weights and by the number of kernels, each of which
waits for the one before. So all that stands between two products is part of one of them: a norm is
one factor of what its map adds up, the logits of the gates are further rows of the map to q, k and
v, a pointwise function or the residual sum is done where the sums come out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlx_pam.ops.metal.launch import SMALL, STEP_ROWS, Signature, build

# Texts, whose sums a lane keeps in registers. With more of them other products are the better ones.
MOST_TEXTS = 8

# Widths from which on scales, and all larger arrays, come in device memory.
LEAST_WIDTH = SMALL

# Complex sums of a lane: with what it has read of x, a hundred registers at most.
MOST_SUMS = 16

# Rows that a simdgroup takes share what it reads of x; but first there must be simdgroups enough to
# keep the memory of a large GPU busy.
MOST_ROWS = 4
ENOUGH_SIMDGROUPS = 256

# Simdgroups of a threadgroup. They share nothing.
GROUP = 4

SIGNATURES = {
    "decode_embedding": Signature(("ids", "table", "scale", "eps"), ("z",)),
    "decode_unit": Signature(("z", "scale", "weight", "bias", "eps"), ("h",)),
    "decode_product": Signature(("x", "weight", "alpha", "base"), ("y",)),
    "decode_projections": Signature(
        ("z", "scale", "qkv_weight", "decay_weight", "decay_bias", "gate_weight", "gate_bias",
         "eps"),
        ("qkv", "decay_logit", "gate_logit"),
    ),
    "decode_memory": Signature(
        ("qkv", "decay_logit", "gate_logit", "phases", "ids", "reset_token", "state"),
        ("y", "new_state"),
    ),
    "decode_logits": Signature(("z", "scale", "table", "eps"), ("logits",)),
}  # fmt: skip


def embedding(ids: mx.array, table: mx.array, scale: mx.array, eps: float) -> mx.array:
    """norm(E[id]), `[B, (2,) D]`. ids: `[B]` or `[B, 1]`, int32; table: `[V, (2,) D]`."""
    shape = (ids.size, *table.shape[1:])
    return _launch(
        "decode_embedding",
        [ids, table, scale, eps],
        {"Element": table.dtype, "B": ids.size, "PLANES": table.ndim - 1, "N": table.shape[-1]},
        simdgroups=ids.size,
        shapes=[shape],
    )[0]


def unit(
    z: mx.array, scale: mx.array, weight: mx.array, bias: mx.array | None, eps: float
) -> mx.array:
    """The gated unit of norm(z) up to its last map, `[B, (2,) M]`.

    weight: `[(2,) 2 M, D]`, up above gate; bias: `[M]`, of modReLU or ReLU, None in SwiGLU.
    """
    m = weight.shape[-2] // 2
    rows = _rows(m, 2 * z.shape[0])
    return _launch(
        "decode_unit",
        [z, scale, weight, scale if bias is None else bias, eps],
        _constants(z, weight, M=m, ROWS=rows, SWIGLU=bias is None),
        simdgroups=-(-m // rows),
        shapes=[(*z.shape[:-1], m)],
    )[0]


def product(
    x: mx.array, weight: mx.array, alpha: mx.array | None = None, base: mx.array | None = None
) -> mx.array:
    """W x, or base + alpha W x, `[B, (2,) M]`. weight: `[(2,) M, D]`; alpha: `[]`; base: like y."""
    m = weight.shape[-2]
    rows = _rows(m, x.shape[0])
    return _launch(
        "decode_product",
        [x, weight, 1.0, x] if base is None else [x, weight, alpha, base],
        _constants(x, weight, M=m, ROWS=rows, RESIDUAL=base is not None),
        simdgroups=-(-m // rows),
        shapes=[(*x.shape[:-1], m)],
    )[0]


def projections(
    z: mx.array,
    scale: mx.array,
    qkv: mx.array,
    decay: tuple[mx.array, mx.array],
    gate: tuple[mx.array, mx.array],
    eps: float,
) -> list[mx.array]:
    """What a memory takes of norm(z): q, k, v `[B, (2,) 3 H d]`, not yet turned, and logits.

    qkv: `[(2,) 3 H d, D]`; decay, gate: weight and bias, `[H, P D]` and `[H]`, `[G, D]` and `[G]`.
    The logits are `[B, H]` and `[B, G]`.
    """
    batch, m, heads, gates = z.shape[0], qkv.shape[-2], decay[1].size, gate[1].size
    rows = _rows(m, batch)
    return _launch(
        "decode_projections",
        [z, scale, qkv, *decay, *gate, eps],
        _constants(z, qkv, M=m, H=heads, GATES=gates, ROWS=rows),
        simdgroups=sum(-(-n // rows) for n in (m, heads, gates)),
        shapes=[(*z.shape[:-1], m), (batch, heads), (batch, gates)],
    )


def memory(
    qkv: mx.array,
    decay_logit: mx.array,
    gate_logit: mx.array,
    phases: mx.array,
    ids: mx.array,
    reset_token: int | None,
    state: mx.array,
) -> list[mx.array]:
    """What the heads read at a token, `[B, (2,) H d]`, and the state after it.

    qkv and logits: of `projections`; phases: `[B, 1, 2, W]`; ids: `[B, 1]`; reset_token: the id at
    which gamma is 0; state: `[B, H, (2,) d, d]`.
    """
    batch, heads, *planes, d, _ = state.shape
    constants = {
        "PLANES": len(planes) + 1, "B": batch, "H": heads, "D": d, "LANES": math.gcd(d, 32),
        "CHANNEL_GATES": gate_logit.size > batch * heads,
    }  # fmt: skip
    return build("decode_memory", SIGNATURES["decode_memory"], "decode_rows")(
        inputs=[
            qkv, decay_logit, gate_logit, phases, ids,
            mx.array(-1 if reset_token is None else reset_token, mx.int32), state,
        ],
        template=list(constants.items()),
        grid=(32, d // STEP_ROWS, batch * heads),
        threadgroup=(32, 2, 1),  # d / 4 is even
        output_shapes=[(batch, *planes, heads * d), state.shape],
        output_dtypes=[mx.float32, mx.float32],
    )  # fmt: skip


def logits(z: mx.array, scale: mx.array, table: mx.array, eps: float) -> mx.array:
    """Re <E, norm(z)>, `[B, V]`. table: `[V, (2,) D]`."""
    vocabulary = table.shape[0]
    rows = _rows(vocabulary, z.shape[0])
    return _launch(
        "decode_logits",
        [z, scale, table, eps],
        _constants(z, table, V=vocabulary, ROWS=rows),
        simdgroups=-(-vocabulary // rows),
        shapes=[(z.shape[0], vocabulary)],
    )[0]


def _rows(rows: int, sums: int) -> int:
    """Rows of a simdgroup, of which each makes so many complex sums."""
    most = min(MOST_ROWS, MOST_SUMS // sums, rows // ENOUGH_SIMDGROUPS)
    return 1 << max(1, most).bit_length() - 1  # a power of 2


def _constants(z: mx.array, weight: mx.array, **more: int) -> dict[str, Any]:
    """Template arguments: all sizes, so that one name means one source (see `launch.constants`)."""
    batch, *planes, n = z.shape
    return {"Element": weight.dtype, "B": batch, "PLANES": len(planes) + 1, "N": n, **more}


def _launch(
    name: str,
    inputs: Sequence[Any],
    constants: dict[str, Any],
    simdgroups: int,
    shapes: Sequence[Sequence[int]],
) -> list[mx.array]:
    return build(name, SIGNATURES[name], "decode_rows")(
        inputs=inputs,
        template=list(constants.items()),
        grid=(32, simdgroups, 1),
        threadgroup=(32, min(GROUP, simdgroups), 1),
        output_shapes=shapes,
        output_dtypes=[mx.float32] * len(shapes),
    )
