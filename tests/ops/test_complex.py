"""Split-real arithmetic is NumPy's complex arithmetic, and nothing at z = 0 is ever NaN."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from oracle import join, relative_error, split

from mlx_pam.ops import complex as cx

# Moduli across float32: where squares underflow, where slopes of 1/|z| overflow, and ordinary ones
TINY = [0.0, *(10.0**-power for power in range(45, 4, -1))]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def planar(z: np.ndarray) -> mx.array:
    return mx.array(split(z).astype(np.float32))


def weight_planes(w: np.ndarray) -> mx.array:
    return mx.array(split(w, axis=-3).astype(np.float32))


def test_products_are_complex_products():
    a, b = draw(3, 5), draw(3, 5, seed=1)
    assert relative_error(cx.multiply(planar(a), planar(b)), split(a * b)) < 1e-6
    assert relative_error(cx.times_i(planar(a)), split(1j * a)) < 1e-7


@pytest.mark.parametrize("rows", [1, 8, 9, 40])  # a few rows read the planes, many the block weight
def test_linear_is_the_complex_matrix_product(rows):
    x, w = draw(rows, 6), draw(10, 6, seed=1)
    y = cx.linear(planar(x), weight_planes(w))
    assert relative_error(y, split(x @ w.T)) < 1e-6


@pytest.mark.parametrize("rows", [2, 40])
def test_linear_leaves_the_planes_of_each_head_together(rows):
    heads, d = 4, 5
    x, w = draw(rows, 6), draw(heads * d, 6, seed=1)
    y = cx.linear(planar(x), weight_planes(w), groups_out=heads)
    assert relative_error(y, split((x @ w.T).reshape(rows, heads, d))) < 1e-6

    back = draw(6, heads * d, seed=2)
    by_head = draw(rows, heads, d, seed=3)
    z = cx.linear(planar(by_head), weight_planes(back), groups_in=heads)
    assert relative_error(z, split(by_head.reshape(rows, heads * d) @ back.T)) < 1e-6


@pytest.mark.parametrize("rows", [2, 40])
def test_gradients_of_linear_are_the_adjoint_maps(rows):
    """With dL = Re <gradient, d.>: dx = W^H dy and dW = dy x^H."""
    x, w, dy = draw(rows, 6), draw(10, 6, seed=1), draw(rows, 10, seed=2)
    _, (dx, dw) = mx.vjp(cx.linear, [planar(x), weight_planes(w)], [planar(dy)])
    assert relative_error(dx, split(dy @ w.conj())) < 1e-6
    assert relative_error(dw, split(dy.T @ x.conj(), axis=-3)) < 1e-6


def test_mod_relu_keeps_the_phase_and_shifts_the_modulus():
    z, bias = draw(50, 4), np.array([0.5, 0.0, -0.5, -100.0])
    expected = np.maximum(np.abs(z) + bias, 0) * z / np.abs(z)
    assert (
        relative_error(cx.mod_relu(planar(z), mx.array(bias, mx.float32)), split(expected)) < 1e-6
    )


@pytest.mark.parametrize("bias", [0.3, 0.0, -0.3])
def test_gradient_of_mod_relu_is_the_slope_along_and_the_gain_across(bias):
    """Radially the slope is 1 where it is open, along the circle it is (|z| + b)/|z|."""
    z, dy = draw(50, 1), draw(50, 1, seed=1)
    dz, db = mx.vjp(cx.mod_relu, [planar(z), mx.array([bias])], [planar(dy)])[1]
    phase, is_open = z / np.abs(z), np.abs(z) + bias > 0
    along, across = (dy * phase.conj()).real, (dy * phase.conj()).imag
    gain = (np.abs(z) + bias) / np.abs(z)
    assert relative_error(dz, split(is_open * (along + 1j * gain * across) * phase)) < 1e-5
    assert relative_error(db, np.array([(is_open * along).sum()])) < 1e-5


@pytest.mark.parametrize("modulus", TINY)
@pytest.mark.parametrize("bias", [0.3, 0.0, -0.3])
def test_mod_relu_and_phase_are_finite_at_every_modulus(bias, modulus):
    z = planar(np.array([modulus * (0.6 + 0.8j)]))
    (y,), (dz, db) = mx.vjp(cx.mod_relu, [z, mx.array([bias])], [mx.ones((2, 1))])
    (magnitude, inverse), (by_magnitude,) = mx.vjp(
        lambda z: list(cx.magnitude_and_inverse(z)), [z], [mx.ones((1,)), mx.zeros((1,))]
    )
    _, (by_phase,) = mx.vjp(
        lambda z: z * cx.magnitude_and_inverse(z)[1][..., None, :], [z], [mx.ones((2, 1))]
    )
    for array in (y, dz, db, magnitude, inverse, by_magnitude, by_phase):
        assert np.isfinite(np.array(array)).all()
    assert np.abs(np.array(by_magnitude)).max() <= 1.0
    assert np.abs(np.array(y)).max() <= modulus + max(bias, 0)
    if bias == 0:
        assert np.abs(np.array(dz)).max() <= 1.0 + 1e-5


def smooth_phase(z: mx.array, eps: float) -> mx.array:
    return z * cx.magnitude_and_inverse(z, eps)[1][..., None, :]


@pytest.mark.parametrize("eps", [1e-12, 1e-4, 0.3, 10.0])
def test_a_smooth_phase_is_z_by_the_root_of_its_square_and_that_of_eps(eps):
    z = draw(50, 4)
    expected = z / np.sqrt(np.abs(z) ** 2 + eps**2)
    assert relative_error(smooth_phase(planar(z), eps), split(expected)) < 1e-6
    magnitude, _ = cx.magnitude_and_inverse(planar(z), eps)
    np.testing.assert_array_equal(magnitude, cx.magnitude_and_inverse(planar(z))[0])


@pytest.mark.parametrize("eps", [1e-12, 1e-4, 0.3])
def test_the_slope_of_a_smooth_phase_is_one_over_eps_at_zero_and_nowhere_more(eps):
    moduli = np.array([0.0, *(eps * 10.0**power for power in range(-3, 4))])
    for turn in (1, 1j):  # along z and across it
        dy = split(np.full((len(moduli), 1), 0.6 + 0.8j) * turn)
        z = planar(moduli[:, None] * (0.6 + 0.8j))
        _, (dz,) = mx.vjp(lambda z: smooth_phase(z, eps), [z], [mx.array(dy.astype(np.float32))])
        slopes = np.abs(join(np.array(dz)))[:, 0]
        assert slopes[0] == pytest.approx(1 / eps, rel=1e-5)
        assert slopes.max() <= (1 + 1e-5) / eps


@pytest.mark.parametrize("bias", [0.3, 0.0, -0.3])
def test_mod_relu_and_phase_are_zero_with_zero_gradient_at_zero(bias):
    z = mx.zeros((3, 2, 4))
    (y,), (dz, db) = mx.vjp(cx.mod_relu, [z, mx.full((4,), bias)], [mx.ones(z.shape)])
    outputs, (by_both,) = mx.vjp(
        lambda z: list(cx.magnitude_and_inverse(z)), [z], [mx.ones((3, 4))] * 2
    )
    for array in (y, dz, db, *outputs, by_both):
        assert not np.array(array).any()


def test_rms_norm_divides_by_the_root_mean_square_modulus():
    z, scale, eps = draw(7, 6) * 3, np.linspace(0.5, 2, 6), 0.1
    expected = scale * z / np.sqrt(np.mean(np.abs(z) ** 2, axis=-1, keepdims=True) + eps)
    found = cx.rms_norm(planar(z), mx.array(scale, mx.float32), eps)
    assert relative_error(found, split(expected)) < 1e-6
    assert relative_error(np.angle(join(np.array(found))), np.angle(z)) < 1e-6


def test_rms_norm_ignores_length_and_turns_with_the_phase():
    z, scale = draw(7, 6), mx.ones((6,))
    turned = cx.rms_norm(planar(z * 8 * np.exp(0.7j)), scale, 1e-6)
    assert (
        relative_error(turned, split(join(cx.rms_norm(planar(z), scale, 1e-6)) * np.exp(0.7j)))
        < 1e-5
    )


def test_rms_norm_of_zero_is_zero_with_a_finite_gradient():
    z = mx.zeros((1, 2, 4))
    (y,), gradients = mx.vjp(
        lambda z, scale: cx.rms_norm(z, scale, 1e-6), [z, mx.ones((4,))], [mx.ones(z.shape)]
    )
    assert not np.array(y).any()
    assert all(np.isfinite(np.array(gradient)).all() for gradient in gradients)
