"""A study of scaling finds the slopes, crossings and doubts of runs whose law is known."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scaling_runs import SCALES, parameters, power_law, write_run, write_sweep
from written_log import end, evaluation, start, steps, write_log

from mlx_pam.analysis.scaling.points import differences, late, read_points
from mlx_pam.analysis.scaling.published import published_points
from mlx_pam.analysis.scaling.study import Study, study
from mlx_pam.analysis.scaling.words import amount, deviations, sentences, times

LAWS = {"pam": power_law(-0.15, 2e9, 2.2), "sam": power_law(-0.12, 2e9, 2.2)}


def studied(folder: Path, window: float = 0.2) -> Study:
    points, left_out = read_points(folder, window)
    return study(points, str(folder), left_out, resamples=500)


@pytest.fixture
def two(tmp_path) -> Study:
    """A run of pam and sam at each scale, on lines that meet at 2 G parameters."""
    return studied(write_sweep(tmp_path, LAWS))


def test_a_run_is_a_point(tmp_path):
    write_run(tmp_path, "pam", "10m", loss=3.0, seed=4, late=0.1)
    (point,), left_out = read_points(tmp_path, window=0.2)
    assert left_out == {}
    assert (point.run, point.family, point.scale, point.seed) == ("pam-10m-4", "pam", "10m", 4)
    assert point.sizes == {"total": 9_944_440, "body": 9_944_440 - 50257 * 2 * 80}
    assert point.loss.mean == pytest.approx(3.0)
    assert point.loss.deviation == pytest.approx(0.1 * math.sqrt(2))
    assert point.loss.count == 2
    assert point.perplexity.mean == pytest.approx((math.exp(2.9) + math.exp(3.1)) / 2)
    assert point.training_loss.mean == pytest.approx(3.0)
    assert point.training_loss.count == 10
    assert point.curve[0].tolist() == [64 * 5 * i for i in range(1, 11)]


@pytest.mark.parametrize(("window", "mean"), [(0.1, 10), (0.2, 9.5), (0.01, 10), (0.11, 9.5),
                                              (1.0, 5.5)])  # fmt: skip
def test_the_late_window_is_a_share_of_the_run(window, mean):
    assert late(np.arange(1.0, 11.0), window).mean == mean


def test_only_finished_runs_directly_in_the_folder_are_read(tmp_path):
    write_run(tmp_path, "pam", "5m", 3.0)
    write_run(tmp_path, "pam", "10m", 3.0, ended="interrupted")
    write_run(tmp_path / "search", "pam", "25m", 3.0)
    damaged = write_run(tmp_path, "sam", "5m", 3.0) / "log.jsonl"
    damaged.write_text(damaged.read_text().replace('"model_type": "sam"', '"model_type": "x"'))
    write_run(tmp_path, "sam", "10m", 0.0)
    write_log(tmp_path / "sam-25m-0", start(), *steps(1, 3), evaluation(3), end(100))
    write_log(tmp_path / "sam-50m-0", start(), *steps(1, 3), end(100))
    (tmp_path / "empty").mkdir()
    points, left_out = read_points(tmp_path, 0.2)
    assert [point.run for point in points] == ["pam-5m-0"]
    assert left_out["sam-10m-0"] == "its loss is not above zero, and has no logarithm"
    assert left_out["pam-10m-0"] == "interrupted"
    assert "model_type must be one of" in left_out["sam-5m-0"]
    assert "must be a JSON object, got NoneType" in left_out["sam-25m-0"]
    assert left_out["sam-50m-0"] == "it has no evaluation"
    assert len(left_out) == 5


@pytest.mark.parametrize("loss", ["800.0", '"nan"', '"inf"'])
def test_runs_whose_late_losses_or_perplexities_are_not_finite_are_left_out(tmp_path, loss):
    log = write_run(tmp_path, "pam", "5m", 3.0) / "log.jsonl"
    log.write_text(log.read_text().replace('"loss": 3.0', f'"loss": {loss}'))
    points, left_out = read_points(tmp_path, 0.2)
    assert points == []
    assert "not finite" in left_out["pam-5m-0"]


@pytest.mark.parametrize("scales", [("5m",), ("5m", "10m")])
def test_sizes_that_differ_by_the_tokenizer_alone_are_no_scales(tmp_path, scales):
    """The embedding makes four sizes, which no floor can be told from, and no line without it."""
    points, _ = read_points(write_sweep(tmp_path, LAWS, scales), 0.2)
    bodies = {point.scale: 10**6 for point in points if len(scales) == 1}
    points = [
        dataclasses.replace(
            point,
            run=f"{point.run}-{size}",
            sizes={"total": size, "body": bodies.get(point.scale, point.sizes["body"])},
        )
        for point in points
        for size in range(point.sizes["body"], point.sizes["body"] + 4 * 10**6, 10**6)
    ]
    found = study(points, resamples=100)
    assert found.floors == ()
    (crossing,) = found.crossings_of("loss", "total")
    assert len(found.crossings_of("loss", "body")) == len(scales) - 1
    said = " ".join(sentences(found))
    assert "that takes four scales" in said
    missing = f"{crossing.families[0]} and {crossing.families[1]} have not two sizes each"
    assert (missing in said) == (len(scales) == 1)


def test_variants_are_families_of_their_own(tmp_path):
    write_run(tmp_path, "pam", "5m", 3.0)
    write_run(tmp_path, "pam", "5m", 3.1, variant="no-gate")
    write_run(tmp_path, "sam", "5m", 3.2, protect="channel")
    assert studied(tmp_path).families == ["pam", "pam no-gate", "sam channel-gate"]


def test_slopes_and_the_crossing_are_recovered(two):
    for family, slope in (("pam", -0.15), ("sam", -0.12)):
        fit = two.fit(family, "loss", "total")
        assert fit.line.slope == pytest.approx(slope, abs=1e-9)
        assert fit.slope_interval.low == pytest.approx(slope, abs=1e-6)
        assert fit.scales == SCALES
        slopes = [line.slope for line in fit.without.values()]
        assert slopes == [pytest.approx(slope, abs=1e-9)] * 5
    (crossing,) = two.crossings_of("loss", "total")
    assert crossing.families == ("pam", "sam")
    assert crossing.kind == "beyond"
    assert crossing.parameters == pytest.approx(2e9, rel=1e-6)
    assert crossing.value == pytest.approx(2.2, rel=1e-6)
    assert crossing.factor == pytest.approx(2e9 / parameters("pam", "100m"), rel=1e-6)
    assert crossing.interval.low == pytest.approx(2e9, rel=1e-3)
    assert crossing.never == 0
    assert crossing.without == {scale: pytest.approx(2e9, rel=1e-5) for scale in SCALES}


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (power_law(-0.12, 3e7, 4.0), "within"),
        (power_law(-0.12, 1e5, 4.0 * 300**0.15), "before"),
        (power_law(-0.15, 3e7, 4.4), "parallel"),
    ],
)
def test_where_lines_meet_has_a_name(tmp_path, other, kind):
    found = studied(write_sweep(tmp_path, {"pam": power_law(-0.15, 3e7, 4.0), "sam": other}))
    (crossing,) = found.crossings_of("loss", "total")
    assert crossing.kind == kind
    said = " ".join(sentences(found))
    assert {
        "within": "within the sizes measured",
        "before": "to the right there is no crossing, and pam draws away",
        "parallel": "are parallel",
    }[kind] in said


def test_the_late_deviations_are_weights(tmp_path):
    law = LAWS["pam"]
    for scale in SCALES:
        off = 1.3 if scale == "25m" else 1.0
        deviation = 0.8 if scale == "25m" else 1e-4
        write_run(tmp_path, "pam", scale, off * law(parameters("pam", scale)), late=deviation)
    fit = studied(tmp_path).fit("pam", "loss", "total")
    assert fit.weighted
    assert fit.line.slope == pytest.approx(-0.15, abs=1e-6)
    assert fit.line.effective < 4.01


def test_one_steady_run_that_has_the_weight_is_named(tmp_path):
    for scale in SCALES:
        late = 1e-5 if scale == "50m" else 0.05
        write_run(tmp_path, "pam", scale, LAWS["pam"](parameters("pam", scale)), late=late)
    assert any("most of the weight is that of pam-50m-0" in s for s in sentences(studied(tmp_path)))


@pytest.mark.parametrize("count", ["total", "body"])
def test_the_floor_is_found_and_called_determined(tmp_path, count):
    scales = (*SCALES, "3m")
    for scale in scales:
        write_run(tmp_path, "pam", scale, 1.7 + 400 * parameters("pam", scale, count) ** -0.34)
    found = studied(tmp_path)
    (floor,) = (floor for floor in found.floors if floor.size == count)
    assert (floor.law.floor, floor.law.exponent) == pytest.approx((1.7, 0.34), rel=1e-4)
    assert floor.law.amplitude == pytest.approx(400, rel=1e-3)
    assert floor.determined
    assert floor.error < 1e-6 < floor.line_error


def test_a_power_law_has_no_floor_and_three_scales_tell_nothing_of_one(tmp_path, two):
    assert [floor.determined for floor in two.floors] == [False] * 4
    few = studied(write_sweep(tmp_path / "few", LAWS, SCALES[:3]))
    assert few.floors == ()
    assert any("cannot be told: that takes four scales" in s for s in sentences(few))


def test_one_scale_has_no_line_and_two_have_no_error(tmp_path):
    one = studied(write_sweep(tmp_path / "one", LAWS, SCALES[:1]))
    assert one.fit("pam", "loss", "total").line is None
    assert one.crossings == ()
    assert "pam has one size, 5m: a line needs two." in sentences(one)
    two = studied(write_sweep(tmp_path / "two", LAWS, SCALES[:2]))
    assert two.fit("pam", "loss", "total").line.slope == pytest.approx(-0.15)
    assert two.fit("pam", "loss", "total").slope_interval is None
    assert two.crossings[0].interval is None
    assert any(s.startswith("pam has 2 scales: a line always fits") for s in sentences(two))
    assert any("say nothing of its error" in s for s in sentences(two))


def test_seeds_and_late_windows_are_set_side_by_side(tmp_path):
    for seed, loss in enumerate((3.0, 3.2, 3.4)):
        write_run(tmp_path, "pam", "5m", loss, seed=seed, late=0.05)
    found = studied(tmp_path)
    assert deviations(found) == pytest.approx((0.2, 0.05 * math.sqrt(2)))
    assert "seeds differ by 0.2 nats, a late window in itself by 0.071" in sentences(found)[0]


def test_what_runs_differ_in_is_said(tmp_path):
    write_run(tmp_path, "pam", "5m", 3.0)
    write_run(tmp_path, "sam", "5m", 3.0, data="another", seq_len=128)
    found = studied(tmp_path)
    assert differences(found.points) == {"data": ["a-text", "another"], "seq_len": ["64", "128"]}
    assert any("differ in data (a-text, another)" in s for s in sentences(found))


@pytest.fixture(scope="module")
def paper() -> Study:
    return study(published_points())


def test_published_means_have_the_published_slopes(paper):
    """The paper: -0.15 and -0.12 in loss, -0.65 and -0.49 in perplexity.

    Those in loss are met to the digit, those in perplexity nearly: the samples behind the means are
    not published.
    """
    for family, loss, perplexity in (("pam", -0.147, -0.652), ("sam", -0.124, -0.488)):
        assert paper.fit(family, "loss", "nominal").line.slope == pytest.approx(loss, abs=5e-4)
        slope = paper.fit(family, "perplexity", "nominal").line.slope
        assert slope == pytest.approx(perplexity, abs=4e-3)


def test_published_means_meet_where_the_paper_has_them_meet(paper):
    """4.5 G at 2.05 nats, and 550 M at a perplexity of 10.6, by nominal sizes."""
    (loss,) = paper.crossings_of("loss", "nominal")
    (perplexity,) = paper.crossings_of("perplexity", "nominal")
    assert loss.parameters == pytest.approx(4.5e9, rel=0.01)
    assert loss.value == pytest.approx(2.05, rel=0.02)
    assert loss.factor == pytest.approx(45, rel=0.01)
    assert perplexity.parameters == pytest.approx(550e6, rel=0.03)
    assert perplexity.value == pytest.approx(10.6, abs=0.05)


def test_published_crossings_are_not_located(paper):
    (loss,) = paper.crossings_of("loss", "nominal")
    assert min(loss.without, key=loss.without.get) == "5m"
    assert max(loss.without, key=loss.without.get) == "50m"
    assert loss.without["5m"] == pytest.approx(2.4e9, rel=0.01)
    assert loss.without["50m"] == pytest.approx(27.4e9, rel=0.01)
    assert loss.interval.low < 300e6
    assert loss.interval.high == math.inf
    assert 0.025 < loss.never < 0.2
    (body,) = paper.crossings_of("loss", "body")
    assert body.parameters == pytest.approx(33.9e9, rel=0.01)
    said = " ".join(sentences(paper))
    for part in ("45 times the largest model", "2.39 G (without 5m) to 27.4 G (without 50m)",
                 "The embedding is 88 %", "33.9 G", "a factor 8.4 apart",
                 "between the two largest, 50m and 100m, the gap does not narrow"):  # fmt: skip
        assert part in said


def test_order_and_company_of_points_change_nothing(paper):
    points = published_points()
    assert study(points[::-1]).crossings == paper.crossings
    third = [dataclasses.replace(p, family="zam") for p in points if p.family == "sam"]
    more = study([*points, *third])
    assert [c for c in more.crossings if c.families == ("pam", "sam")] == list(paper.crossings)


def test_amounts_and_factors_are_short():
    values = (563_184, 4.98e6, 1e8, 551e6, 999_999_999, 4.478e9, 1.2e12, 12.0, math.inf)
    assert [amount(value) for value in values] == [
        "563 k", "4.98 M", "100 M", "551 M", "1 G", "4.48 G", "1.2 T", "12", "∞",
    ]  # fmt: skip
    factors = (1.234, 5.39, 45.2, 1234.0)
    assert [times(factor) for factor in factors] == ["1.23", "5.4", "45", "1,200"]
