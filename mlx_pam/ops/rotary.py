"""Rotary position embedding: plane k at position m turns by the angle m theta_k."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlx_pam.ops import complex as cx


def rotary_phases(positions: np.ndarray, d: int, base: float = 10000.0) -> mx.array:
    """e^{i m theta_k} with theta_k = base^(-k/d), k = 0..d-1.

    positions: whole numbers of any size and shape `[...]`, on the host.
    Returns float32 `[..., 2, d]` (cosine, sine). The angles are taken in float64, so that a phase
    at position 10^6 is as exact as one at 10, and no table ends the context.
    """
    theta = base ** (-np.arange(d) / d)  # [d]
    angle = np.asarray(positions, np.float64)[..., None] * theta  # [..., d]
    return mx.array(np.stack([np.cos(angle), np.sin(angle)], axis=-2).astype(np.float32))


def rotate(x: mx.array, phases: mx.array) -> mx.array:
    """x e^{i m theta}. x: `[B, T, H, 2, d]`; phases: `[T, 2, d]` or `[B, T, 2, d]`."""
    return cx.multiply(x, phases[..., None, :, :].astype(x.dtype))
