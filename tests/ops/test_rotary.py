"""Rotary embedding depends on distances only, and is as exact at position 10^6 as at 10."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from oracle import join, relative_error, split

from mlx_pam.ops.rotary import rotate
from mlx_pam.phases import rotary_phases


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def turned(z: np.ndarray, positions: np.ndarray, base: float = 10000.0) -> np.ndarray:
    """rotate() on a complex array [B, T, H, d]."""
    phases = mx.array(rotary_phases(positions, z.shape[-1], base))
    return join(np.array(rotate(mx.array(split(z).astype(np.float32)), phases)))


@pytest.mark.parametrize("start", [0, 1, 511, 10**6, 2**24 + 1, 10**9])
@pytest.mark.parametrize("d", [8, 16, 64])
def test_phases_are_exact_at_any_position(start, d):
    positions = np.arange(start, start + 5)
    theta = [10000.0 ** (-k / d) for k in range(d)]
    expected = np.exp(1j * np.multiply.outer(positions.astype(np.longdouble), theta))
    assert relative_error(rotary_phases(positions, d), split(expected)) < 2e-7


@pytest.mark.parametrize("far", [0, 100, 10**6, 10**8])
def test_the_product_of_query_and_key_depends_on_their_distance(far):
    q, k = draw(1, 1, 2, 16), draw(1, 1, 2, 16, seed=1)
    for distance in (0, 1, 7, 300):
        near = np.vdot(turned(k, np.array([0])), turned(q, np.array([distance])))
        away = np.vdot(turned(k, np.array([far])), turned(q, np.array([far + distance])))
        assert abs(near - away) < 1e-5 * np.linalg.norm(q) * np.linalg.norm(k)
    assert abs(near - np.vdot(k, q)) > 1e-2  # it does depend on the distance


def test_rotation_turns_channel_k_by_position_times_theta_and_keeps_the_modulus():
    z, positions = draw(2, 5, 3, 8), np.array([0, 1, 2, 50, 4000])
    angle = positions[:, None] * 100.0 ** (-np.arange(8) / 8)
    expected = z * np.exp(1j * angle)[:, None]
    found = turned(z, positions, base=100.0)
    assert relative_error(split(found), split(expected)) < 1e-6
    assert relative_error(np.abs(found), np.abs(z)) < 1e-6


def test_each_row_may_stand_at_positions_of_its_own():
    z = draw(2, 5, 3, 8)
    positions = np.array([[0, 1, 2, 3, 4], [70, 71, 72, 73, 74]])
    together = turned(z, positions)
    apart = [turned(z[row : row + 1], positions[row]) for row in range(2)]
    assert np.array_equal(together, np.concatenate(apart))
