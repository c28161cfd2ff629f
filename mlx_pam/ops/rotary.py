"""Rotary position embedding: channel k at position m turns by the angle m theta_k."""

from __future__ import annotations

import mlx.core as mx

from mlx_pam.ops import complex as cx


def rotate(x: mx.array, phases: mx.array) -> mx.array:
    """x e^{i m theta}. x: `[B, T, H, 2, d]`; phases: `[T, 2, d]` or `[B, T, 2, d]`."""
    return cx.multiply(x, phases[..., None, :, :]).astype(x.dtype)
