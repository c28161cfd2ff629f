"""How losses of every scale come down as models are trained, the families side by side."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mlx_pam.analysis import style
from mlx_pam.analysis.scaling.points import Point
from mlx_pam.analysis.scaling.study import Study

WIDTH, HEIGHT = 3.9, 4.4
"""Inches of a family's panel."""
RAMP = LinearSegmentedColormap.from_list("scales", ["#9ecae9", "#0072B2", "#02233d"])
"""From the smallest scale to the largest."""
DESCENT = 0.1
"""Of a run this share, its beginning, may rise above the frame."""


def draw_convergence(study: Study) -> Figure:
    """Loss of the evaluations against tokens, a panel for each family, a thin line for each run."""
    families = study.families
    scales = _scales(study)
    colours = dict(zip(scales, RAMP(np.linspace(0, 1, len(scales))), strict=True))
    with matplotlib.rc_context(style.settings()):
        figure = Figure(figsize=(0.6 + WIDTH * max(2, len(families)), HEIGHT))
        width, _ = figure.get_size_inches()
        panels = figure.subplots(
            1, len(families), sharey=True, squeeze=False,
            gridspec_kw={
                "left": 0.6 / width, "right": 1 - 0.25 / width, "bottom": 0.14, "top": 0.83,
                "wspace": 0.1,
            },
        )[0]  # fmt: skip
        for axes, family in zip(panels, families, strict=True):
            style.title(axes, family, "validation loss, nats" if axes is panels[0] else "")
            for point in study.of(family):
                if point.curve is not None:
                    tokens, loss = point.curve
                    axes.plot(
                        tokens, loss, color=colours[point.scale], linewidth=1, alpha=0.9,
                        marker="o" if len(tokens) <= 12 else "", markersize=2.4,
                    )  # fmt: skip
            axes.set_yscale("log")
            axes.set_xlabel("tokens trained on")
            axes.margins(x=0.02)
            style.linear_numbers(axes.xaxis, 5)
        panels[0].set_ylim(*_limits(study))
        style.log_numbers(panels[0].yaxis)
        keys = [Line2D([], [], color=colours[scale], linewidth=2.4) for scale in scales]
        figure.legend(
            keys, scales, loc="upper left", bbox_to_anchor=(0.6 / width, 0.985), fontsize=10,
            ncols=max(1, len(scales)), borderaxespad=0, borderpad=0, columnspacing=2.0,
        )  # fmt: skip
    return figure


def _scales(study: Study) -> list[str]:
    """Names of the scales, the smallest first."""
    size = study.sizes[0]
    largest: dict[str, int] = {}
    for point in study.points:
        largest[point.scale] = max(largest.get(point.scale, 0), point.sizes[size])
    return sorted(largest, key=largest.__getitem__)


def _limits(study: Study) -> tuple[float, float]:
    """Of the loss: all of it but the descents at the beginning."""
    late = np.concatenate([_behind_descent(point) for point in study.points if point.curve])
    margin = (late.max() / late.min()) ** 0.08 if late.max() > late.min() else 1.2
    return late.min() / margin, late.max() * margin


def _behind_descent(point: Point) -> np.ndarray:
    tokens, loss = point.curve
    late = loss[tokens >= tokens[0] + DESCENT * (tokens[-1] - tokens[0])]
    return late if len(late) else loss
