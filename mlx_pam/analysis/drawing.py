"""The curves of one run or several as a figure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mlx_pam.analysis import style
from mlx_pam.analysis.curves import Bins, Curves, bin_curve, running_mean
from mlx_pam.analysis.extent import SPREAD, Extent
from mlx_pam.analysis.panels import LAYOUT, PANELS, Panel, Series
from mlx_pam.errors import ConfigError

Along = Literal["step", "tokens", "time"]
"""What the x axis is; `time` is that of training, without pauses."""

FIELDS: dict[Along, str] = {"step": "step", "tokens": "tokens", "time": "elapsed"}
TIMES = ((172_800.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (180.0, 60.0, "minutes"))
"""From so many seconds on, in units of so many, named so."""

SIZE = (11.0, 7.2)
LEFT, RIGHT, BOTTOM, GAP = 0.65, 0.3, 0.8, 0.6
"""Inches about the panels and from one to the next; above is as much as the heading needs."""

BANDS = 3
"""Most curves in a panel that keep their bands; the bands of more would hide each other."""
FEW = 40
"""Points up to which each is marked."""
DESCENT, LONG = 0.04, 200
"""Of a run of so many steps this share, its beginning, may rise above the frame."""
SMOOTH = 0.01
"""Standard deviation of the running mean's weights, as a share of the run."""


def draw_curves(
    runs: Mapping[str, Curves],
    x: Along = "step",
    smooth: bool = False,
    heading: str = "",
    panels: Mapping[str, Panel] = PANELS,
    layout: Sequence[Sequence[str]] = LAYOUT,
) -> Figure:
    """A figure of panels, each with all runs; `heading` goes with a single one.

    Long curves are drawn as the means of bins, up to three runs with a band from the least to the
    most in each. With `smooth` the line is a running mean, and the curve itself lies behind it.
    Every run must have steps. Raises `ConfigError` where a log does not tell `x`.
    """
    drawing = _Drawing(runs, x, smooth, panels)
    width, height = SIZE
    columns = len(layout[0])
    column = (width - LEFT - RIGHT - (columns - 1) * GAP) / columns
    above = 0.5 + 0.25 * drawing.head_rows
    with matplotlib.rc_context(style.settings()):
        figure = Figure(figsize=SIZE)
        axes = figure.subplot_mosaic(
            layout,
            gridspec_kw={
                "left": LEFT / width, "right": 1 - RIGHT / width, "wspace": GAP / column,
                "bottom": BOTTOM / height, "top": 1 - above / height, "hspace": 0.42,
            },
        )  # fmt: skip
        for place, panel in panels.items():
            drawing.panel(axes[place], panel)
            if place in layout[-1]:
                axes[place].set_xlabel(drawing.x_name)
        drawing.explain(axes[layout[0][0]])
        drawing.head(figure, heading)
        drawing.foot(figure)
    return figure


def save(figure: Figure, path: Path, suffix: str = "") -> None:
    """Write a figure in the format of the suffix (.png, .svg, .pdf), by default the path's."""
    with matplotlib.rc_context(style.settings()):
        figure.savefig(path, format=(suffix or path.suffix).removeprefix("."))


class _Drawing:
    """What the panels of a figure share: the runs, their colours, and the x axis."""

    def __init__(
        self, runs: Mapping[str, Curves], x: Along, smooth: bool, panels: Mapping[str, Panel]
    ) -> None:
        self.runs, self.smooth, self.field = runs, smooth, FIELDS[x]
        events = [[series.event for series in panel.series] for panel in panels.values()]
        self.validated = any("evaluation" in row for row in events)
        self.points = "steps" if any("step" in row for row in events) else "records"
        lines = max(len(row) - row.count("evaluation") for row in events)
        self.single, self.bands = len(runs) == 1, lines * len(runs) <= BANDS
        looks = itertools.product(style.DASHES, style.COLOURS)  # colours change first
        self.looks = dict(zip(runs, itertools.cycle(looks), strict=False))
        self.legend_columns = max(1, min(4, 110 // (6 + max(map(len, runs)))))
        self.head_rows = 2 if self.single else -(-len(runs) // self.legend_columns)
        self.steps_per_point = 1.0
        ends = []
        for name, curves in runs.items():
            known = curves.along("step", self.field)
            if known is None:
                raise ConfigError(f"x must be what the log of {name} tells, got {x!r}")
            ends.append(np.nanmax(known))
        self.x_size, self.x_name = 1.0, "seconds of training" if x == "time" else x
        for least, size, unit in reversed(TIMES) if x == "time" else ():
            if max(ends) >= least:
                self.x_size, self.x_name = size, f"{unit} of training"

    def bins(self, curves: Curves, series: Series) -> Bins | None:
        """What is drawn of a series, None where there is nothing."""
        x, y = curves.along(series.event, self.field), curves.column(series.event, series.field)
        if x is None or not np.isfinite(y).any():
            return None
        known = np.isfinite(x)
        order = np.argsort(x[known], kind="stable")
        return bin_curve(x[known][order] / self.x_size, y[known][order])

    def panel(self, axes: Axes, panel: Panel) -> None:
        """Draw every run's curves, and the axes to them."""
        style.title(axes, panel.name, panel.unit)
        extent = Extent()
        for name, curves in self.runs.items():
            begins = -np.inf
            for series in panel.series:
                bins = self.bins(curves, series)
                if bins is None:
                    continue
                dashes, colour = series.look or self.looks[name]
                if series.event == "evaluation":
                    self._validation(axes, bins, series, colour)
                else:
                    smooth = self.smooth and panel.noisy
                    self._training(axes, bins, series, smooth, color=colour, linestyle=dashes)
                    self.steps_per_point = max(self.steps_per_point, bins.points / len(bins.x))
                    if panel.descends and bins.points >= LONG:
                        begins = bins.x[0] + DESCENT * (bins.x[-1] - bins.x[0])
                least, most = (bins.least, bins.most) if self.bands else (bins.mean, bins.mean)
                extent.add(series.of(least), series.of(most), bins.x >= begins)
        axes.margins(x=0.015)
        first, last = axes.dataLim.intervalx
        if first == last:
            axes.set_xlim(first - 1, last + 1)
        style.linear_numbers(axes.xaxis, 6, whole=self.field != "elapsed")
        self._scale(axes, panel, extent)

    def _training(self, axes: Axes, bins: Bins, series: Series, smooth: bool, **look: Any) -> None:
        line = bins.mean
        if self.bands and bins.points > len(bins.x):
            least, most = series.of(bins.least), series.of(bins.most)
            axes.fill_between(bins.x, least, most, color=look["color"], alpha=0.16, linewidth=0)
        if smooth:
            line = running_mean(bins, SMOOTH * (bins.x[-1] - bins.x[0]) or 1.0)
            if self.bands:
                axes.plot(bins.x, series.of(bins.mean), alpha=0.3, linewidth=0.8, **look)
        if len(bins.x) <= FEW:
            look |= {"marker": "o", "markersize": 2.4}
        axes.plot(bins.x, series.of(line), linewidth=1.3, **look)

    def _validation(self, axes: Axes, bins: Bins, series: Series, colour: str) -> None:
        look = self._validation_look(style.COLOURS[1] if self.single else colour)
        if len(bins.x) > FEW:
            look["marker"] = ""
        axes.plot(bins.x, series.of(bins.mean), zorder=3, **look)

    def _validation_look(self, colour: str) -> dict[str, Any]:
        return {
            "color": colour, "linewidth": 1.5, "linestyle": "-" if self.single else (0, (3, 1.5)),
            "marker": "o", "markersize": 4, "markerfacecolor": colour if self.single else "white",
        }  # fmt: skip

    def _scale(self, axes: Axes, panel: Panel, extent: Extent) -> None:
        """The limits of the y axis and its numbers."""
        if not extent.peaks:
            axes.set_yticks([])
            axes.text(0.5, 0.5, "not in the log", transform=axes.transAxes, ha="center",
                      color=style.SOFT)  # fmt: skip
            return
        log = panel.log if isinstance(panel.log, bool) else extent.spread() > SPREAD
        log = log and max(extent.peaks) > 0
        low, high = extent.limits(log, panel.from_zero)
        if log:
            axes.set_yscale("log")
        axes.set_ylim(low, high)
        if log:
            style.log_numbers(axes.yaxis)
        else:
            inches = axes.get_position().height * SIZE[1]
            style.linear_numbers(axes.yaxis, max(5, round(inches / 0.42)))
        if extent.first > high:
            note = f"\u2191 begins at {style.short(float(f'{extent.first:.3g}'))}"
            axes.annotate(
                note, (0.07, 1), (0, -3), xycoords="axes fraction", textcoords="offset points",
                va="top", color=style.SOFT, fontsize=8,
            )  # fmt: skip

    def explain(self, axes: Axes) -> None:
        """Say what the lines of training and validation are, and mark what befell the runs."""
        keys = []
        if self.validated:
            training, validation = style.COLOURS[:2] if self.single else (style.SOFT, style.SOFT)
            keys = [
                Line2D([], [], color=training, linewidth=1.3, label="training"),
                Line2D([], [], label="validation", **self._validation_look(validation)),
            ]
        marks = {"resumed": ("^", 0.012, self._resumed), "not finite": ("x", 0.985, self._broken)}
        for label, (marker, height, where) in marks.items():
            look: dict[str, Any] = {"marker": marker, "markersize": 5, "linestyle": "none"}
            found = {name: x for name, curves in self.runs.items() if len(x := where(curves))}
            for name, x in found.items():
                colour = style.INK if self.single else self.looks[name][1]
                axes.plot(
                    x, np.full(len(x), height), color=colour, clip_on=False,
                    transform=axes.get_xaxis_transform(), **look,
                )  # fmt: skip
            if found:
                keys.append(Line2D([], [], color=style.INK, label=label, **look))
        if keys:
            style.key(axes, keys)

    def _resumed(self, curves: Curves) -> np.ndarray:
        """Where later sessions began."""
        starts = [step for step in curves.starts if step > 0]
        x = curves.along("step", self.field)
        return np.interp(starts, curves.column("step", "step"), x) / self.x_size

    def _broken(self, curves: Curves) -> np.ndarray:
        """Where a loss was not finite, whatever the event."""
        found = [np.empty(0)]
        for event, columns in curves.tables.items():
            x = curves.along(event, self.field)
            if "loss" in columns and x is not None:
                found.append(x[~np.isfinite(columns["loss"])] / self.x_size)
        return np.concatenate(found)

    def head(self, figure: Figure, heading: str) -> None:
        """The name of the run with its heading, or the names of the runs with their colours."""
        left, top = LEFT / SIZE[0], 1 - 0.22 / SIZE[1]
        if self.single:
            (name,) = self.runs
            figure.text(left, top, name, fontsize=15, fontweight="bold", va="top")
            figure.text(left, top - 0.32 / SIZE[1], heading, color=style.SOFT, va="top")
            return
        keys = [
            Line2D([], [], color=colour, linestyle=dashes, linewidth=2.4)
            for dashes, colour in self.looks.values()
        ]
        figure.legend(
            keys, list(self.runs), loc="upper left", bbox_to_anchor=(left, top), fontsize=10,
            ncols=self.legend_columns, borderaxespad=0, borderpad=0, columnspacing=2.2,
        )  # fmt: skip

    def foot(self, figure: Figure) -> None:
        """How the curves were thinned out and smoothed."""
        notes = []
        if self.steps_per_point > 1:
            bands = "; bands reach from the least to the most of them" if self.bands else ""
            up_to = "" if self.single else "up to "
            points = f"{up_to}{self.steps_per_point:,.0f} {self.points}"
            notes.append(f"lines are means over {points}{bands}")
        if self.smooth:
            notes.append(f"smooth lines are running means (Gaussian, σ = {SMOOTH:.0%} of the run)")
        place = {"x": 1 - RIGHT / SIZE[0], "y": 0.15 / SIZE[1], "ha": "right", "va": "bottom"}
        figure.text(s=" · ".join(notes), color=style.SOFT, fontsize=8, **place)
