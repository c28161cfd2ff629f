"""Rotary phases, made on the host in float64 for either backend."""

from __future__ import annotations

import numpy as np


def rotary_phases(positions: np.ndarray, d: int, base: float = 10000.0) -> np.ndarray:
    """e^{i m theta_k} with theta_k = base^(-k/d), k = 0..d-1.

    positions: whole numbers m of any size, `[...]`.
    Returns float32 `[..., 2, d]`, cosine and sine. The angles are taken in float64, so that a phase
    at position 10^6 is as exact as one at 10, and no table ends the context.
    """
    theta = base ** (-np.arange(d) / d)  # [d]
    angle = np.asarray(positions, np.float64)[..., None] * theta  # [..., d]
    return np.stack([np.cos(angle), np.sin(angle)], axis=-2).astype(np.float32)


def paired_rotation(positions: np.ndarray, d: int, base: float = 10000.0) -> np.ndarray:
    """What turns the pairs (j, j + d/2) of d real channels: rows (cos, cos) and (-sin, sin).

    positions: `[...]`. Returns float32 `[..., 2, d]`.
    """
    phases = rotary_phases(positions, d // 2, base)  # [..., 2, d/2]
    return np.concatenate([phases * np.float32([[1], [-1]]), phases], axis=-1)
