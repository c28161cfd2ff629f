"""The picture of scaling has every run and line where it is, and names what it does not show."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mlx_pam.analysis.scaling.points import Late
from mlx_pam.analysis.scaling.published import published_points
from mlx_pam.analysis.scaling.study import study

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from matplotlib.collections import PolyCollection

from mlx_pam.analysis.scaling.curves import draw_convergence
from mlx_pam.analysis.scaling.drawing import draw_scaling


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def drawn(axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_points_lines_bands_and_crossings_are_drawn():
    points = [dataclasses.replace(p, loss=Late(p.loss.mean, 0.05, 3)) for p in published_points()]
    found = study(points, resamples=200)
    loss, perplexity = draw_scaling(found).axes
    sizes = [p.sizes["nominal"] for p in points if p.family == "pam"]
    means = [p.loss.mean for p in points if p.family == "pam"]
    assert (sizes, means) in drawn(loss)
    assert sum(isinstance(part, PolyCollection) for part in loss.collections) == 2
    for axes, quantity in ((loss, "loss"), (perplexity, "perplexity")):
        (crossing,) = found.crossings_of(quantity, "nominal")
        assert ([crossing.parameters], [crossing.value]) in drawn(axes)
        assert axes.get_xlim()[0] < 5e6 < crossing.parameters < axes.get_xlim()[1]
        assert any(text.startswith("meet at ") for text in texts(axes))
        slope = found.fit("pam", quantity, "nominal").line.slope
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert f"slope −{-slope:.3f}" in labels[0]
    bars = [segment for part in loss.collections if hasattr(part, "get_segments")
            for segment in part.get_segments()]  # fmt: skip
    assert any(np.allclose(bar[:, 1], [means[0] - 0.05, means[0] + 0.05]) for bar in bars)


def test_a_deviation_above_the_mean_has_a_bar_that_leaves_the_axis():
    points = [
        dataclasses.replace(p, perplexity=Late(p.perplexity.mean, 2 * p.perplexity.mean, 3))
        for p in published_points()
    ]
    _, perplexity = draw_scaling(study(points, resamples=100)).axes
    low, high = perplexity.get_ylim()
    assert 0 < low < 25.9
    assert high > 3 * 258.9


def test_a_crossing_off_the_axis_is_named_with_an_arrow():
    found = study(published_points(), resamples=200)
    loss, _ = draw_scaling(found, "body").axes
    assert loss.get_xlim()[1] < 34e9
    assert any("33.9 G" in text and text.endswith("→") for text in texts(loss))
    assert loss.get_xlabel() == "parameters without the embedding"


def test_three_families_are_named_where_they_meet():
    points = published_points()
    third = [dataclasses.replace(p, family="zam", loss=Late(p.loss.mean * 0.9 + 0.1))
             for p in points if p.family == "sam"]  # fmt: skip
    loss, _ = draw_scaling(study([*points, *third], resamples=200)).axes
    named = [text.split(":")[0] for text in texts(loss)]
    assert {"pam, sam", "pam, zam"} <= set(named)


def test_every_run_has_its_curve_and_every_scale_its_colour():
    tokens = np.arange(1.0, 11.0) * 1e6
    points = [
        dataclasses.replace(p, seed=seed, run=f"{p.run}-{seed}",
                            curve=(tokens, p.loss.mean + 2 / np.arange(1.0, 11.0)))
        for p in published_points() for seed in (0, 1)
    ]  # fmt: skip
    figure = draw_convergence(study(points, resamples=200))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pam", "sam"]
    for axes in figure.axes:
        assert len(axes.lines) == 10
        assert len({tuple(line.get_color()) for line in axes.lines}) == 5
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["5m", "10m", "25m", "50m", "100m"]
