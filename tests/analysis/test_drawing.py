"""A figure shows each run's curves where they are, and says what it left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from written_log import checkpoint, end, evaluation, start, step, steps, write_log

from mlx_pam.analysis.curves import Curves, read_curves
from mlx_pam.analysis.panels import LAYOUT, PANELS
from mlx_pam.errors import ConfigError

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from matplotlib.collections import PolyCollection

from mlx_pam.analysis import style
from mlx_pam.analysis.drawing import BANDS, FEW, draw_curves, save


def falling(steps: int) -> np.ndarray:
    """Losses of a run, which begin at 10.8 and end near 3."""
    return 3.0 + 7.8 * np.exp(-np.arange(steps) / (0.01 * steps))


def curves(count: int = 100, **fields: np.ndarray) -> Curves:
    """A run of so many steps, evaluated four times."""
    number = np.arange(1.0, count + 1)
    table = {
        "step": number, "tokens": 64 * number, "loss": falling(count), "lr": 1e-3 / number,
        "grad_norm": 1 + 1 / number, "tokens_per_s": np.full(count, 900.0),
        "peak_memory": np.full(count, 2e9), "elapsed": 36.0 * number,
    } | fields  # fmt: skip
    at = number[count // 4 - 1 :: max(1, count // 4)]
    evaluations = {"step": at, "tokens": 64 * at, "loss": np.full(len(at), 3.5)}
    return Curves({"step": table, "evaluation": evaluations}, (0,))


def axes(figure, place: str):
    (found,) = [axes for axes in figure.axes if axes.get_label() == place]
    return found


def lines(figure, place: str) -> list:
    """Curves in a panel, marks aside."""
    return [line for line in axes(figure, place).lines if line.get_linestyle() != "None"]


def words(figure) -> str:
    """Everything that is written, legends included."""
    found = [*figure.texts]
    for part in [figure, *figure.axes]:
        legends = part.legends if part is figure else [part.get_legend()]
        found += [text for legend in legends if legend for text in legend.get_texts()]
    for part in figure.axes:
        found += [*part.texts, part.title, part.xaxis.label, part._left_title]
    return "\n".join(text.get_text() for text in found)


def test_every_panel_has_its_place_its_name_and_its_unit():
    assert {place for row in LAYOUT for place in row} == set(PANELS)
    text = words(draw_curves({"first": curves()}, heading="what it is"))
    for panel in PANELS.values():
        assert panel.name in text
        assert panel.unit in text
    assert "first" in text
    assert "what it is" in text


def test_curves_are_the_numbers_of_the_log():
    run = curves(FEW)
    figure = draw_curves({"run": run})
    training, validation = lines(figure, "loss")
    np.testing.assert_array_equal(training.get_xdata(), run.column("step", "step"))
    np.testing.assert_array_equal(training.get_ydata(), run.column("step", "loss"))
    np.testing.assert_array_equal(validation.get_xdata(), run.column("evaluation", "step"))
    np.testing.assert_array_equal(validation.get_ydata(), 3.5)
    (memory,) = lines(figure, "memory")
    np.testing.assert_array_equal(memory.get_ydata(), 2.0)
    np.testing.assert_allclose(
        lines(figure, "perplexity")[0].get_ydata(), np.exp(run.column("step", "loss"))
    )


@pytest.mark.parametrize(
    ("x", "size", "label"), [("tokens", 64, "tokens"), ("time", 36 / 60, "minutes of training")]
)
def test_all_curves_go_along_the_chosen_axis(x, size, label):
    figure = draw_curves({"run": curves(100)}, x)
    for place in PANELS:
        for line in lines(figure, place):
            assert line.get_xdata()[-1] == pytest.approx(100 * size)
    assert label in words(figure)


@pytest.mark.parametrize(
    ("seconds", "unit", "last"),
    [(179, "seconds", 179), (180, "minutes", 3), (7200, "hours", 2), (172_800, "days", 2)],
)
def test_time_is_counted_in_a_fitting_unit(seconds, unit, last):
    figure = draw_curves({"run": curves(4, elapsed=np.linspace(1, seconds, 4))}, "time")
    assert f"{unit} of training" in words(figure)
    assert lines(figure, "lr")[0].get_xdata()[-1] == pytest.approx(last)


def test_a_log_that_does_not_tell_the_axis_is_named():
    old = curves()
    del old.tables["step"]["elapsed"]
    with pytest.raises(ConfigError, match="x must be what the log of old tells, got 'time'"):
        draw_curves({"new": curves(), "old": old}, "time")


def test_an_old_log_without_a_field_says_so_in_its_panel():
    old = curves()
    del old.tables["step"]["peak_memory"], old.tables["evaluation"]
    figure = draw_curves({"old": old})
    assert "not in the log" in [text.get_text() for text in axes(figure, "memory").texts]
    assert len(lines(figure, "loss")) == 1


def test_a_long_run_is_drawn_by_means_and_bands_and_says_so():
    noise = np.random.default_rng(0).normal(size=300_000)
    figure = draw_curves({"long": curves(300_000, tokens_per_s=900 + noise)})
    (line,) = lines(figure, "speed")
    assert len(line.get_xdata()) == 1000
    assert line.get_ydata() == pytest.approx(900 + noise.reshape(1000, 300).mean(axis=1), abs=0.05)
    (band,) = [c for c in axes(figure, "speed").collections if isinstance(c, PolyCollection)]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (900 + noise.min(), 900 + noise.max())
    assert "means over 300 steps; bands reach from the least to the most" in words(figure)
    assert "means over" not in words(draw_curves({"short": curves(2000)}))


def test_more_runs_than_bands_can_be_told_apart_have_none():
    runs = {str(i): curves(3000) for i in range(BANDS + 1)}
    assert not axes(draw_curves(runs), "loss").collections
    del runs["0"]
    assert axes(draw_curves(runs), "loss").collections


def test_a_name_is_written_as_it_is(tmp_path):
    for names in (["$x$"], ["$x$", "_y", "a_b^c"]):
        save(draw_curves({name: curves(3) for name in names}), tmp_path / "x.svg")
        drawn = (tmp_path / "x.svg").read_text("utf-8")
        assert [name for name in names if f">{name}<" not in drawn] == []


@pytest.mark.parametrize("count", [1, 2, 8, 20])
def test_runs_are_told_by_colour_and_named_in_the_legend(count):
    runs = {f"run-{i}": curves() for i in range(count)}
    figure = draw_curves(runs)
    used = [(line.get_color(), line.get_linestyle()) for line in lines(figure, "norm")]
    assert len(set(used)) == count
    assert len({colour for colour, _ in used}) == min(count, len(style.COLOURS))
    if count > 1:
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == list(runs)
        keys = [(line.get_color(), line.get_linestyle()) for line in legend.get_lines()]
        assert keys == used
        figure.canvas.draw()
        box, top = legend.get_window_extent(), axes(figure, "loss").get_tightbbox().y1
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert top <= box.y0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_run_of_few_steps_can_be_seen(count):
    figure = draw_curves({"new": curves(count)})
    for place in PANELS:
        for line in lines(figure, place):
            assert line.get_marker() != "None"
            low, high = axes(figure, place).get_ylim()
            assert (low < line.get_ydata()).all()
            assert (line.get_ydata() < high).all()
    ticks = axes(figure, "loss").get_xticks()
    assert all(tick == int(tick) for tick in ticks)


def test_the_descent_may_rise_above_the_frame_which_says_where_it_begins():
    figure = draw_curves({"run": curves(2000)})
    assert axes(figure, "loss").get_ylim()[1] < 4
    assert [text.get_text() for text in axes(figure, "loss").texts][-1] == "\u2191 begins at 10.8"
    whole = draw_curves({"run": curves(100)})
    assert axes(whole, "loss").get_ylim()[1] > 10.8
    assert "begins at" not in words(whole)


def test_peaks_that_lie_far_apart_have_a_logarithmic_axis():
    def scale(*peaks: float) -> str:
        runs = {str(peak): curves(lr=np.linspace(peak, 0, 100)) for peak in peaks}
        return axes(draw_curves(runs), "lr").get_yscale()

    assert scale(1e-3) == "linear"
    assert scale(1e-3, 5e-3) == "linear"
    assert scale(1e-4, 5e-3) == "log"
    assert axes(draw_curves({"run": curves()}), "perplexity").get_yscale() == "log"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_a_gap_with_a_mark(value):
    loss = falling(100)
    loss[49] = value
    run = curves(loss=loss)
    run.tables["skipped"] = {"step": np.array([30.0]), "loss": np.array([math.nan])}
    figure = draw_curves({"run": run})
    training = lines(figure, "loss")[0]
    assert np.isnan(training.get_ydata()).tolist() == [i == 49 for i in range(100)]
    (marks,) = [line for line in axes(figure, "loss").lines if line.get_marker() == "x"]
    assert sorted(marks.get_xdata()) == [30, 50]
    assert "not finite" in words(figure)
    assert np.isfinite(axes(figure, "loss").get_ylim()).all()


def test_a_run_of_nothing_finite_is_no_error():
    nothing = np.full(5, math.nan)
    run = curves(5, loss=nothing, grad_norm=np.zeros(5), lr=np.zeros(5))
    del run.tables["evaluation"]
    text = words(draw_curves({"run": run}, smooth=True))
    assert "not in the log" in text


def test_resumes_are_marked_where_they_happened(tmp_path):
    log = [start(), *steps(1, 6), start(4), *steps(5, 8), evaluation(8), checkpoint(8), end(8)]
    figure = draw_curves({"run": read_curves(write_log(tmp_path, *log))}, "time")
    (marks,) = [line for line in axes(figure, "loss").lines if line.get_marker() == "^"]
    assert marks.get_xdata().tolist() == [8.0]
    assert "resumed" in words(figure)


def test_smoothing_draws_the_mean_before_the_curve_and_leaves_schedules_alone():
    noise = np.random.default_rng(0).normal(size=1000)
    figure = draw_curves({"run": curves(1000, tokens_per_s=900 + noise)}, smooth=True)
    faint, smooth = lines(figure, "speed")
    np.testing.assert_array_equal(faint.get_ydata(), 900 + noise)
    assert np.std(smooth.get_ydata()) < 0.3
    assert faint.get_alpha() < 0.5
    assert smooth.get_alpha() is None
    assert len(lines(figure, "lr")) == 1
    assert "running means" in words(figure)


def test_pictures_are_of_the_kind_their_names_say(tmp_path):
    figure = draw_curves({"run": curves()})
    for name, begin in {"a.png": b"\x89PNG", "a.svg": b"<?xml", "a.pdf": b"%PDF"}.items():
        save(figure, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1e-6, "1e-6"), (2.5e-4, "2.5e-4"), (0.004, "0.004"), (9.5, "9.5"),
        (2500, "2,500"), (12_500, "12.5k"), (-3e5, "-300k"), (1.5e6, "1.5M"), (2e13, "20T"),
    ],
)  # fmt: skip
def test_numbers_along_axes_are_short(value, text):
    assert style.short(value) == text


@pytest.mark.parametrize(("low", "high"), [(0.1, 100), (18, 240), (300, 700), (11, 11.5)])
def test_a_logarithmic_axis_has_three_numbers_or_more(low, high):
    figure = draw_curves({"run": curves()})
    panel = axes(figure, "norm")
    panel.set_ylim(low, high)
    style.log_numbers(panel.yaxis)
    ticks = panel.get_yticks()
    assert len([tick for tick in ticks if low <= tick <= high]) >= 3


def test_numbers_of_a_step_are_at_the_step(tmp_path):
    log = [start(), step(1), step(10, 2.0), step(100, 1.0)]
    figure = draw_curves({"run": read_curves(write_log(tmp_path, *log))}, "tokens")
    assert lines(figure, "loss")[0].get_xdata().tolist() == [64, 640, 6400]
