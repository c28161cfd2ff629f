"""A log is read as columns whatever befell it; long curves keep their extremes and their mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_log import end, evaluation, start, step, steps, write_log

from mlx_pam.analysis.curves import bin_curve, read_curves, running_mean


def test_columns_are_the_numbers_of_the_log(tmp_path):
    losses = [5.0, 4.5, 4.25]
    records = [step(i + 1, loss) for i, loss in enumerate(losses)]
    curves = read_curves(write_log(tmp_path, start(), *records, evaluation(3, 4.4), end(3)))
    assert curves.column("step", "loss").tolist() == losses
    assert curves.column("step", "tokens").tolist() == [64, 128, 192]
    assert curves.column("evaluation", "loss").tolist() == [4.4]
    assert curves.column("evaluation", "lr").tolist() == []
    assert curves.column("no such event", "loss").tolist() == []
    assert curves.starts == (0,)


def test_words_for_numbers_that_json_lacks_are_read_back(tmp_path):
    records = [step(1, math.nan, grad_norm=math.inf), step(2, lr=-math.inf)]
    curves = read_curves(write_log(tmp_path, start(), *records))
    np.testing.assert_array_equal(curves.column("step", "loss"), [math.nan, 3.0])
    np.testing.assert_array_equal(curves.column("step", "grad_norm"), [math.inf, 0.5])
    np.testing.assert_array_equal(curves.column("step", "lr"), [1e-3, -math.inf])


@pytest.mark.parametrize(
    "rest",
    [
        b'{"event": "step", "step": 3, "loss": 2.',
        b'{"event": "step", "step": "three"}\n',
        b'{"event": "step", "step": 99999999999999999999999999}\n',
        b'{"event": "step"}\n{"step": 3}\nnull\n\xff\n',
    ],
)
def test_what_is_no_record_of_ours_is_passed_over(tmp_path, rest):
    curves = read_curves(write_log(tmp_path, start(), *steps(1, 2), rest=rest))
    assert curves.column("step", "step").tolist() == [1, 2]


def test_a_number_beyond_a_float_is_infinite(tmp_path):
    rest = b'{"event": "step", "step": 3, "loss": 1' + b"0" * 400 + b"}\n"
    curves = read_curves(write_log(tmp_path, start(), step(1), rest=rest))
    assert curves.column("step", "loss").tolist() == [3.0, math.inf]


def test_fields_that_some_records_lack_are_nan_there(tmp_path):
    old = {"event": "step", "step": 2, "loss": 2.0}
    new = step(3) | {"layers.0.rms": 0.5}
    curves = read_curves(write_log(tmp_path, start(), step(1), old, new, old | {"step": 4}))
    assert curves.column("step", "loss").tolist() == [3.0, 2.0, 3.0, 2.0]
    np.testing.assert_array_equal(curves.column("step", "lr"), [1e-3, np.nan, 1e-3, np.nan])
    np.testing.assert_array_equal(
        curves.column("step", "layers.0.rms"), [np.nan, np.nan, 0.5, np.nan]
    )


def test_what_a_later_session_takes_back_is_left_out(tmp_path):
    first = [start(), *steps(1, 5, 9.0), evaluation(2, 9.0), evaluation(4, 9.0)]
    second = [start(3), *steps(4, 6, 1.0)]
    curves = read_curves(write_log(tmp_path, *first, *second))
    assert curves.column("step", "step").tolist() == [1, 2, 3, 4, 5, 6]
    assert curves.column("step", "loss").tolist() == [9, 9, 9, 1, 1, 1]
    assert curves.column("evaluation", "step").tolist() == [2]
    assert curves.starts == (0, 3)


def test_a_step_that_comes_again_takes_the_later_ones_back(tmp_path):
    curves = read_curves(write_log(tmp_path, start(), *steps(1, 5, 9.0), *steps(3, 4, 1.0)))
    assert curves.column("step", "loss").tolist() == [9, 9, 1, 1]


def test_evaluations_lie_where_their_steps_do(tmp_path):
    records = [*steps(1, 4), evaluation(2), evaluation(4), {"event": "skipped", "step": 3}]
    curves = read_curves(write_log(tmp_path, start(), *records))
    assert curves.along("evaluation", "step").tolist() == [2, 4]
    assert curves.along("evaluation", "tokens").tolist() == [128, 256]
    assert curves.along("evaluation", "elapsed").tolist() == [4.0, 8.0]
    assert curves.along("skipped", "elapsed").tolist() == [6.0]
    assert curves.along("step", "no such field") is None
    assert curves.along("no such event", "step") is None


curve = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf])), min_size=1, max_size=99
)


@given(y=curve, most_points=st.integers(1, 20), gaps=st.booleans())
def test_bins_keep_the_extremes_and_the_mean(y, most_points, gaps):
    y = np.array(y)
    x = np.arange(len(y)) ** (2 if gaps else 1)
    bins = bin_curve(x, y, most_points)
    finite = y[np.isfinite(y)]
    assert len(bins.x) <= (2 * most_points if len(y) <= 2 * most_points else most_points)
    assert bins.points == len(y)
    assert bins.count.sum() == len(finite)
    assert (np.diff(bins.x) > 0).all()
    assert bins.x[0] >= x[0]
    assert bins.x[-1] <= x[-1]
    assert np.isnan(bins.mean).tolist() == (bins.count == 0).tolist()
    if len(finite):
        assert np.nanmin(bins.least) == finite.min()
        assert np.nanmax(bins.most) == finite.max()
        total = np.nansum(bins.mean * bins.count)
        assert total == pytest.approx(finite.sum(), rel=1e-9, abs=1e-6)


def test_bins_are_of_equal_width_and_hold_their_points():
    x = np.arange(1000.0)
    bins = bin_curve(x, np.where(x < 500, 0.0, x), most_points=10)
    assert bins.x.tolist() == [49.5 + 100 * i for i in range(10)]
    assert bins.mean.tolist()[4:6] == [0.0, 549.5]
    assert (bins.least[5], bins.most[5], bins.count[5]) == (500, 599, 100)


def test_a_running_mean_is_that_of_all_points_of_the_curve():
    x = np.arange(4000.0)
    y = np.sin(x / 300) + np.random.default_rng(0).normal(size=4000)
    bins = bin_curve(x, y, most_points=1000)
    smooth = running_mean(bins, width=40.0)
    weight = np.exp(-0.5 * ((bins.x[500] - x) / 40.0) ** 2)
    assert smooth[500] == pytest.approx((weight * y).sum() / weight.sum(), abs=1e-3)
    assert np.std(smooth - np.sin(bins.x / 300)) < 0.2 * np.std(bins.mean - np.sin(bins.x / 300))


def test_a_running_mean_passes_gaps_over():
    y = np.where(np.arange(50) == 20, np.nan, 2.0)
    smooth = running_mean(bin_curve(np.arange(50.0), y), width=3.0)
    np.testing.assert_allclose(smooth, y)
