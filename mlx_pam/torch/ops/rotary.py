"""Rotary position embedding: channel k at position m turns by the angle m theta_k."""

from __future__ import annotations

from torch import Tensor

from mlx_pam.torch.ops import complex as cx


def rotate(x: Tensor, phases: Tensor) -> Tensor:
    """x e^{i m theta}. x: `[B, T, H, 2, d]`; phases: `[T, 2, d]` or `[B, T, 2, d]`."""
    return cx.multiply(x, phases[..., None, :, :]).to(x.dtype)
