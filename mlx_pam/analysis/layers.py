"""The diagnostics of a run as a figure: a panel for each quantity, in it a line for each block."""

from __future__ import annotations

import re
from dataclasses import replace

import matplotlib
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mlx_pam.analysis import style
from mlx_pam.analysis.curves import Curves
from mlx_pam.analysis.drawing import RIGHT, SIZE, Along, draw_curves
from mlx_pam.analysis.panels import Panel, Series
from mlx_pam.errors import ConfigError

EVENT = "diagnostics"
QUANTITIES = {
    "rms": Panel("Residual stream", "RMS after each block", (), log="if spread"),
    "grad_norm": Panel("Gradient norm", "before clipping", (), log=True),
    "active": Panel("Active units", "share", (), from_zero=True),
    "small_gate": Panel("Small gates", "share", (), from_zero=True),
    "decay": Panel("Decay \u03b3", "mean", ()),
    "protect": Panel("Protect gate p", "mean", (), from_zero=True),
}
"""The field at the end of `layers.{i}.{field}` -> its panel, yet without lines."""

FIELD = re.compile(r"layers\.(\d{1,4})\.(\w+)", re.ASCII)
ENDS = {"embedding": ((0, (1, 1.4)), style.SOFT), "head": ((0, (4, 1.8)), style.SOFT)}
"""What has a gradient beside the blocks -> its dashes and colour."""
KEY_WIDTH, KEY_HEIGHT = 2.6, 0.13
"""Inches of the bar that says which colour is which block."""
NUMBERED = 12
"""Blocks up to which each has its number at the bar."""


def draw_layers(
    name: str, curves: Curves, x: Along = "step", smooth: bool = False, heading: str = ""
) -> Figure:
    """A figure of a run's diagnostics; colours go with depth, and `heading` below the name.

    Raises `ConfigError` where the log has no diagnostics, or does not tell `x`.
    """
    panels, blocks = _panels(name, curves)
    figure = draw_curves({name: curves}, x, smooth, heading, panels, _layout(list(panels)))
    with matplotlib.rc_context(style.settings()):
        _explain(figure, blocks)
        (axes,) = (axes for axes in figure.axes if axes.get_label() == "grad_norm")
        keys = [
            Line2D([], [], label=end, linestyle=dashes, color=colour, linewidth=1.3)
            for end, (dashes, colour) in ENDS.items()
        ]
        style.key(axes, keys)
    return figure


def _panels(name: str, curves: Curves) -> tuple[dict[str, Panel], list[int]]:
    """The panels of what is in the log, with a line for each block that has it, and the blocks."""
    fields = curves.tables.get(EVENT, {})
    found = sorted(
        (int(match[1]), match[2])
        for match in map(FIELD.fullmatch, fields)
        if match and match[2] in QUANTITIES
    )
    if not found:
        raise ConfigError(
            f"diagnostics must be in the log of {name}, got none: train with --diagnostics-every"
        )
    blocks = sorted({block for block, _ in found})
    colours = dict(zip(blocks, style.shades(len(blocks)), strict=True))
    ends = [Series(EVENT, f"{end}.grad_norm", look=look) for end, look in ENDS.items()]
    lines: dict[str, list[Series]] = {"grad_norm": ends}
    for block, quantity in found:
        line = Series(EVENT, f"layers.{block}.{quantity}", look=("-", colours[block]))
        lines.setdefault(quantity, []).append(line)
    panels = {
        quantity: replace(panel, series=tuple(lines[quantity]))
        for quantity, panel in QUANTITIES.items()
        if quantity in lines
    }
    return panels, blocks


def _layout(places: list[str]) -> list[list[str]]:
    """Two panels in the first row and up to four in the second, in 12 columns; or one in each."""
    first, rest = (places[:2], places[2:]) if len(places) > 2 else (places[:1], places[1:])
    rows = [row for row in (first, rest) if row]
    return [[place for place in row for _ in range(12 // len(row))] for row in rows]


def _explain(figure: Figure, blocks: list[int]) -> None:
    """A bar of the blocks' colours at the upper right, with their numbers."""
    width, height = SIZE
    place = (width - RIGHT - KEY_WIDTH, height - 0.36, KEY_WIDTH, KEY_HEIGHT)
    sizes = (width, height, width, height)
    axes = figure.add_axes([inches / size for inches, size in zip(place, sizes, strict=True)])
    axes.set_label("blocks")
    last = len(blocks) - 1
    shades = ListedColormap(style.shades(len(blocks)))
    axes.imshow([range(len(blocks))], shades, aspect="auto", vmin=-0.5, vmax=last + 0.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    numbered = range(len(blocks)) if len(blocks) <= NUMBERED else (0, last)
    axes.set_xticks(numbered, [str(blocks[i]) for i in numbered])
    axes.tick_params(length=0, pad=3, labelsize=8)
    axes.set_yticks([])
    axes.set_ylabel("block", rotation=0, ha="right", va="center", labelpad=6)
