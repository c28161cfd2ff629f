"""Scaling as a figure: loss and perplexity against parameters, and where the lines meet."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mlx_pam.analysis import style
from mlx_pam.analysis.scaling.resampling import LOWER, UPPER, quantile
from mlx_pam.analysis.scaling.study import QUANTITIES, Crossing, Fit, Quantity, Study
from mlx_pam.analysis.scaling.words import amount

SIZE = (11.0, 5.0)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MARGIN = 1.6
"""Beyond the smallest and largest size, or the last crossing shown, the axis goes on so far."""
REACH = 300.0
"""Crossings up to so many times the largest model are shown; farther ones are named."""
GRID = 80
NAMES = {"loss": ("Loss", "nats per token"), "perplexity": ("Perplexity", "")}
COUNTED = {
    "nominal": "parameters, as sizes are called",
    "total": "parameters",
    "body": "parameters without the embedding",
}


def draw_scaling(study: Study, size: str | None = None) -> Figure:
    """Two panels, loss and perplexity, over parameters counted as `size` says.

    Points are runs, their bars the deviations of the late window; lines are fits, dashed beyond
    what was measured; bands hold 95 % of the lines of resampled runs.
    """
    size = size or study.sizes[0]
    looks = dict(
        zip(study.families, zip(style.COLOURS * 9, MARKERS * 9, strict=False), strict=False)
    )
    with matplotlib.rc_context(style.settings()):
        figure = Figure(figsize=SIZE)
        panels = figure.subplots(1, 2, gridspec_kw={
            "left": 0.055, "right": 0.98, "bottom": 0.125, "top": 0.91, "wspace": 0.15,
        })  # fmt: skip
        for axes, quantity in zip(panels, QUANTITIES, strict=True):
            _Panel(axes, study, quantity, size, looks).draw()
    return figure


class _Panel:
    """Axes with one quantity."""

    def __init__(
        self,
        axes: Axes,
        study: Study,
        quantity: Quantity,
        size: str,
        looks: dict[str, tuple[str, str]],
    ) -> None:
        self.axes, self.study, self.looks = axes, study, looks
        self.quantity, self.size = quantity, size
        sizes = [point.sizes[size] for point in study.points]
        self.first, self.last = min(sizes), max(sizes)
        shown = [c.parameters for c in study.crossings if self._shows(c) and c.size == size]
        self.limits = self.first / MARGIN, max([self.last, *shown]) * MARGIN
        self.grid = np.geomspace(*self.limits, GRID)

    def _shows(self, crossing: Crossing) -> bool:
        """Whether the axis reaches so far."""
        return crossing.kind == "within" or (crossing.kind == "beyond" and crossing.factor <= REACH)

    def draw(self) -> None:
        axes = self.axes
        style.title(axes, *NAMES[self.quantity])
        axes.set(xscale="log", yscale="log", xlim=self.limits)
        axes.axvspan(self.first, self.last, color=style.RULE, alpha=0.45, linewidth=0, zorder=0)
        heights = []
        for family in self.study.families:
            heights += self._family(self.study.fit(family, self.quantity, self.size))
        low, high = min(heights), max(heights)
        margin = max((high / low) ** 0.08, 1.02)
        axes.set_ylim(low / margin**1.6, high * margin)
        for row, crossing in enumerate(self.study.crossings_of(self.quantity, self.size)):
            self._crossing(crossing, row)
        axes.annotate(
            "measured", (self.first, 1), (4, -4), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", va="top", color=style.SOFT, fontsize=8,
        )  # fmt: skip
        style.log_numbers(axes.xaxis)
        style.log_numbers(axes.yaxis)
        axes.set_xlabel(COUNTED[self.size])
        axes.legend(handles=self._keys(), loc="upper right", handlelength=2.2)

    def _family(self, fit: Fit) -> list[float]:
        """Runs, line and band of a family; the heights that the axis has to hold."""
        colour, marker = self.looks[fit.family]
        points = self.study.of(fit.family)
        measured = [getattr(point, self.quantity) for point in points]
        sizes = [point.sizes[self.size] for point in points]
        means = np.array([late.mean for late in measured])
        bars = np.array([late.deviation or 0.0 for late in measured])
        ends = [*np.where(bars < means, means - bars, means), *(means + bars)]
        self.axes.errorbar(
            sizes, means, yerr=bars, color=colour, marker=marker, markersize=5.5,
            markeredgecolor="white", markeredgewidth=0.6, linestyle="none", elinewidth=1,
            capsize=2, zorder=4,
        )  # fmt: skip
        if fit.line is None:
            return ends
        inside = np.geomspace(min(sizes), max(sizes), 2)
        line = self._heights(fit, self.grid)
        self.axes.plot(self.grid, line, color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
        self.axes.plot(inside, self._heights(fit, inside), color=colour, linewidth=1.8, zorder=3)
        if fit.samples is not None:
            self._band(fit, colour)
        return [*ends, *line]

    def _heights(self, fit: Fit, sizes: np.ndarray) -> np.ndarray:
        return 10 ** fit.line.at(np.log10(sizes))

    def _band(self, fit: Fit, colour: str) -> None:
        """Between the lines of the samples, 95 % of them at each size."""
        kept = fit.samples.kept
        slope, intercept = fit.samples.slope[kept], fit.samples.intercept[kept]
        edges = [
            [10 ** quantile(intercept + slope * x, share) for x in np.log10(self.grid)]
            for share in (LOWER, UPPER)
        ]
        self.axes.fill_between(self.grid, *edges, color=colour, alpha=0.13, linewidth=0, zorder=1)

    def _crossing(self, crossing: Crossing, row: int) -> None:
        """A mark where two lines meet, or the name of a place that is off the axis."""
        if crossing.kind in ("parallel", "before"):
            return
        many = len(self.study.families) > 2
        text = f"{', '.join(crossing.families)}: " if many else "meet at "
        text += amount(crossing.parameters)
        if crossing.interval is not None:
            low, high = crossing.interval.low, crossing.interval.high
            to = "upwards" if math.isinf(high) else f"to {amount(high)}"
            text += f"\n95 %: {amount(low)} {to}"
        axes, up = self.axes, 0.03 + 0.1 * row
        ground = {"facecolor": axes.get_facecolor(), "alpha": 0.7, "linewidth": 0, "pad": 1}
        look = {
            "fontsize": 8, "color": style.INK, "linespacing": 1.35, "va": "bottom", "zorder": 6,
            "bbox": ground if many else None,  # a text may stand on another crossing's line
        }  # fmt: skip
        if not self._shows(crossing):
            axes.text(0.985, up, f"{text} \u2192", ha="right", transform=axes.transAxes, **look)
            return
        x, y = crossing.parameters, crossing.value
        low, high = axes.get_ylim()
        axes.plot([x, x], [low, y], color=style.INK, linewidth=0.9, linestyle=":", zorder=2)
        axes.plot([x], [y], color=style.INK, marker="o", markersize=6.5, zorder=5,
                  markerfacecolor="white", markeredgewidth=1.3)  # fmt: skip
        left = x * x < self.limits[0] * self.limits[1]  # of the middle: room is on the right
        axes.annotate(
            text, (x, up), (6 if left else -6, 0), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha="left" if left else "right", **look,
        )  # fmt: skip

    def _keys(self) -> list[Line2D]:
        """Names of the families with their slopes."""
        keys = []
        for family in self.study.families:
            colour, marker = self.looks[family]
            line = self.study.fit(family, self.quantity, self.size).line
            label = family
            if line is not None:
                label += f"  slope {line.slope:.3f}".replace("-", "\u2212")
                label += f" ± {line.slope_error:.3f}" if line.slope_error is not None else ""
            keys.append(
                Line2D(
                    [], [], color=colour, marker=marker, markersize=5.5, linewidth=1.8,
                    linestyle="-" if line else "none", label=label, markeredgecolor="white",
                )
            )  # fmt: skip
        return keys
