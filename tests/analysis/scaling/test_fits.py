"""Lines and laws are those that the numbers were made of; samples are of runs, and repeatable."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlx_pam.analysis.scaling.fits import fit_line, fit_saturating, lines, weights
from mlx_pam.analysis.scaling.resampling import (
    Interval,
    Samples,
    interval,
    meetings,
    quantile,
    resample,
    without_each,
)

SIZES = np.array([5e6, 1e7, 2.5e7, 5e7, 1e8])
LOSS_SLOPE = -0.15


def on_a_line(sizes: np.ndarray = SIZES, slope: float = LOSS_SLOPE) -> np.ndarray:
    return 40.0 * sizes**slope


def test_a_power_law_is_recovered():
    line = fit_line(SIZES, on_a_line())
    assert line.slope == pytest.approx(LOSS_SLOPE, abs=1e-12)
    assert 10**line.intercept == pytest.approx(40.0, rel=1e-10)
    assert line.slope_error == pytest.approx(0, abs=1e-9)
    assert line.r_squared == pytest.approx(1)
    assert line.effective == pytest.approx(5)


def test_weights_are_those_of_errors_in_logarithms():
    means, deviations = np.array([4.0, 2.0]), [0.4, 0.1]
    sigma = np.array(deviations) / (means * math.log(10))
    found = weights(means, deviations)
    assert found.mean() == pytest.approx(1)
    assert found[1] / found[0] == pytest.approx((sigma[0] / sigma[1]) ** 2)


@pytest.mark.parametrize("deviations", [[0.1, None], [0.1, 0.0], [None, None]])
def test_runs_without_a_deviation_weigh_the_same(deviations):
    assert weights(np.array([4.0, 2.0]), deviations) is None


def test_the_line_goes_through_what_has_the_weight():
    value = on_a_line()
    value[2] *= 1.5  # off the line
    weight = np.array([1.0, 1.0, 1e-12, 1.0, 1.0])
    assert fit_line(SIZES, value, weight).slope == pytest.approx(LOSS_SLOPE, abs=1e-9)
    assert fit_line(SIZES, value, weight).effective == pytest.approx(4)
    value = on_a_line()
    value[0] *= 1.5
    flat = fit_line(SIZES, value).slope
    assert flat < LOSS_SLOPE - 0.01
    assert fit_line(SIZES, value, weight[[2, 0, 1, 3, 4]]).slope == pytest.approx(LOSS_SLOPE)


def test_the_line_is_that_of_numpy():
    rng = np.random.default_rng(0)
    value = on_a_line() * np.exp(0.05 * rng.standard_normal(5))
    weight = rng.uniform(0.1, 3, 5)
    slope, intercept = np.polyfit(np.log10(SIZES), np.log10(value), 1, w=np.sqrt(weight))
    line = fit_line(SIZES, value, weight)
    assert (line.slope, line.intercept) == pytest.approx((slope, intercept))
    (_, covariance) = np.polyfit(np.log10(SIZES), np.log10(value), 1, cov=True)
    assert fit_line(SIZES, value).slope_error == pytest.approx(math.sqrt(covariance[0, 0]))


def test_two_points_have_a_line_and_no_error_and_one_has_none():
    line = fit_line(SIZES[:2], on_a_line()[:2])
    assert line.slope == pytest.approx(LOSS_SLOPE)
    assert line.slope_error is None
    assert fit_line(SIZES[:1], on_a_line()[:1]) is None
    assert fit_line(SIZES[[0, 0, 0]], np.array([3.0, 3.1, 3.2])) is None


@pytest.mark.parametrize(("floor", "amplitude", "exponent"),
                         [(1.7, 400.0, 0.34), (0.0, 40.0, 0.15), (2.5, 3e4, 0.7)])  # fmt: skip
def test_a_law_with_a_floor_is_recovered(floor, amplitude, exponent):
    sizes = np.append(SIZES, 3e8)
    law = fit_saturating(sizes, floor + amplitude * sizes**-exponent)
    assert law.floor == pytest.approx(floor, abs=1e-5)
    assert law.amplitude == pytest.approx(amplitude, rel=1e-4)
    assert law.exponent == pytest.approx(exponent, rel=1e-5)


def test_a_floor_is_never_below_zero():
    falling_ever_faster = 5.0 - 1e-8 * SIZES
    law = fit_saturating(SIZES, falling_ever_faster)
    assert law.floor == 0
    assert law.amplitude > 0
    assert fit_saturating(SIZES[:2], on_a_line()[:2]) is None


def test_samples_are_repeatable_and_of_whole_runs():
    value = on_a_line() * np.array([1.02, 0.99, 1.01, 1.0, 0.98])
    first, again = (resample("pam", SIZES, value, None, 500, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.slope, again.slope)
    other_seed = resample("pam", SIZES, value, None, 500, seed=4)
    other_family = resample("sam", SIZES, value, None, 500, seed=3)
    for other in (other_seed, other_family):
        assert not np.array_equal(first.slope, other.slope, equal_nan=True)
    pairs = {fit_line(SIZES[[i, j]], value[[i, j]]).slope for i in range(5) for j in range(i)}
    assert min(pairs) - 1e-12 <= first.slope[first.kept].min()
    assert first.slope[first.kept].max() <= max(pairs) + 1e-12


def test_samples_with_one_size_are_skipped_and_counted():
    few = resample("pam", SIZES[:3], on_a_line()[:3], None, 4000, seed=0)
    assert few.skipped == pytest.approx(4000 * 3 / 27, rel=0.2)  # all three draws alike
    np.testing.assert_allclose(few.slope[few.kept], LOSS_SLOPE)
    assert resample("pam", SIZES[:2], on_a_line()[:2], None, 100, seed=0) is None


def test_intervals_hold_the_slope_about_as_often_as_they_say():
    """Seeds of fifteen runs scattered by 1 %: 95 % intervals hold the truth in most worlds."""
    sizes = np.repeat(SIZES, 3)
    held = 0
    for world in range(200):
        noise = np.exp(0.01 * np.random.default_rng(world).standard_normal(15))
        samples = resample("pam", sizes, on_a_line(sizes) * noise, None, 400, seed=world)
        bounds = interval(samples.slope[samples.kept])
        held += bounds.low <= LOSS_SLOPE <= bounds.high
    assert 0.85 < held / 200 < 0.99


def test_lines_that_turn_never_meet():
    a = Samples(np.array([-0.2, -0.1, np.nan, -0.2]), np.array([2.0, 2.0, np.nan, 2.0]))
    b = Samples(np.array([-0.1, -0.15, -0.1, np.nan]), np.array([1.0, 1.0, 1.0, np.nan]))
    np.testing.assert_allclose(meetings(a, b), [10.0, np.inf])


def test_quantiles_know_infinity():
    values = np.array([np.inf, 1.0, 2.0, 3.0])
    assert [quantile(values, share) for share in (0.0, 0.5, 0.75, 0.76)] == [1, 2, 3, np.inf]
    assert interval(np.array([np.inf, 5.0])) == Interval(5.0, np.inf)


def test_weights_of_nothing_make_no_line():
    weight = np.array([[1.0, 0.0], [1.0, 1.0]])
    slope, intercept = lines(np.array([1.0, 2.0]), np.array([1.0, 3.0]), weight)
    np.testing.assert_allclose(slope, [np.nan, 2.0])
    np.testing.assert_allclose(intercept, [np.nan, -1.0])


def test_a_scale_left_out_takes_all_its_runs_with_it():
    kept = without_each(["5m", "5m", "10m"], lambda mask: mask.tolist() if mask.any() else None)
    assert kept == {"5m": [False, False, True], "10m": [True, True, False]}
    assert without_each(["5m"], lambda mask: 1 if mask.any() else None) == {}
