"""The field that a network computes over: COMPLEX makes it PAM, REAL makes it SAM.

Block, memory, gates and decay are written once against this record, so that the arithmetic is the
only difference between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.config import MemoryConfig, SAMConfig
from mlx_pam.layers import complex as complex_layers
from mlx_pam.layers import real as real_layers
from mlx_pam.ops import complex as cx
from mlx_pam.ops.rotary import rotate


@dataclass(frozen=True)
class Field:
    """The layers and functions that depend on the arithmetic; d is a number of channels."""

    planes: int
    """Real numbers per channel: 2 or 1."""
    linear: Callable[..., nn.Module]
    """(n, m, groups_in=None, groups_out=1) -> a linear map without bias; None: no such axis."""
    norm: Callable[[int, float], nn.Module]
    """(d, eps) -> RMS norm."""
    gated_unit: Callable[[int, int], nn.Module]
    """(d, hidden) -> channel mixing."""
    embedding: Callable[[int, int], nn.Module]
    """(V, d) -> token vectors and the tied head."""
    rotary_width: Callable[[int], int]
    """Phases that a head of width d turns by."""
    rotate: Callable[[mx.array, mx.array], mx.array]
    """(x [B, T, H, (2,) d], phases [..., T, 2, width]) -> x turned by its position."""
    multiply: Callable[[mx.array, mx.array], mx.array]
    """The product of numbers, per element."""
    unit_vectors: Callable[[mx.array, float], mx.array]
    """(x, eps) -> x / sqrt(|x|^2 + d eps), its last d numbers at length 1 together, float32."""
    features: Callable[[mx.array], tuple[mx.array, mx.array]]
    """x -> what the decay sees (all real numbers of x) and what the protect gate sees (|x|)."""


def _rotate_pairs(x: mx.array, phases: mx.array) -> mx.array:
    """Standard real rotary: channels j and j + d/2 are the two planes of one complex number."""
    return mx.flatten(rotate(mx.unflatten(x, -1, (2, -1)), phases), -2)


def _unit_vectors(x: mx.array, eps: float) -> mx.array:
    d = x.shape[-1]
    return mx.fast.rms_norm(x.astype(mx.float32), None, eps) * d**-0.5


def _complex_unit_vectors(z: mx.array, eps: float) -> mx.array:
    return cx.rms_norm(z, mx.full(z.shape[-1:], z.shape[-1] ** -0.5), eps)


COMPLEX = Field(
    planes=2,
    linear=complex_layers.ComplexLinear,
    norm=complex_layers.ComplexNorm,
    gated_unit=complex_layers.ComplexGatedUnit,
    embedding=complex_layers.ComplexEmbedding,
    rotary_width=lambda d: d,
    rotate=rotate,
    multiply=cx.multiply,
    unit_vectors=_complex_unit_vectors,
    features=lambda x: (mx.flatten(x, -2), cx.magnitude_and_inverse(x)[0]),
)

REAL = Field(
    planes=1,
    linear=real_layers.RealLinear,
    norm=real_layers.RealNorm,
    gated_unit=real_layers.RealGatedUnit,
    embedding=real_layers.RealEmbedding,
    rotary_width=lambda d: d // 2,
    rotate=_rotate_pairs,
    multiply=mx.multiply,
    unit_vectors=_unit_vectors,
    features=lambda x: (x, mx.abs(x)),
)

REAL_SWIGLU = Field(**{**vars(REAL), "gated_unit": real_layers.SwiGLU})


def field_of(config: MemoryConfig) -> Field:
    """The field of a model's family."""
    if isinstance(config, SAMConfig):
        return REAL_SWIGLU if config.gated_unit == "swiglu" else REAL
    if config.phase_eps:
        smooth = partial(COMPLEX.gated_unit, phase_eps=config.phase_eps)
        return replace(COMPLEX, gated_unit=smooth)
    return COMPLEX
