"""How every picture looks: its type, its inks, and the numbers along its axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C",
)  # fmt: skip
"""Okabe and Ito's, which colour-blind eyes tell apart; its yellow is too light and left out."""
DASHES = ("-", ":", "-.")
"""Of lines, where there are more of them than colours."""
INK, SOFT, LINE, RULE = "#24292f", "#656d76", "#d0d7de", "#eaeef2"
"""Of words, lesser words, axes, and the lines behind curves."""
FONTS = ("Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")

TITLE_PAD = 8
"""Points between axes and title."""
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def settings() -> Mapping[str, Any]:
    """What `matplotlib.rc_context` takes."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return {
        "font.family": [name for name in FONTS if name in installed],
        "font.size": 9,
        "text.parse_math": False,  # a dollar in a run's name is one
        "text.color": INK,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelcolor": SOFT,
        "axes.edgecolor": LINE,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": RULE,
        "grid.linewidth": 0.8,
        "xtick.color": LINE,
        "xtick.labelcolor": SOFT,
        "ytick.color": RULE,
        "ytick.labelcolor": SOFT,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "legend.handlelength": 1.6,
        "legend.labelcolor": INK,
        "lines.solid_capstyle": "round",
        "lines.solid_joinstyle": "round",
        "savefig.dpi": 150,
        "svg.fonttype": "none",  # words stay words
        "pdf.fonttype": 42,
    }


def title(axes: Axes, name: str, unit: str) -> None:
    """The name of what is drawn, and its unit in softer type behind it."""
    text = axes.set_title(name, pad=TITLE_PAD)
    axes.annotate(
        unit, (1, 1), (6, TITLE_PAD), xycoords=(text, "axes fraction"), textcoords="offset points",
        color=SOFT,
    )  # fmt: skip


def key(axes: Axes, handles: Sequence[Artist]) -> None:
    """What the lines of a panel are, above it on the right."""
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles), borderpad=0,
        columnspacing=1.4,
    )  # fmt: skip


def shades(count: int) -> list[str]:
    """So many colours in an order that is seen: from dark blue to a light green."""
    shade = matplotlib.colormaps["viridis"]
    return [to_hex(shade(0.84 * i / max(1, count - 1))) for i in range(count)]


def linear_numbers(axis: Axis, ticks: int = 5, whole: bool = False) -> None:
    """At most so many round numbers, whole ones if asked for."""
    axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def log_numbers(axis: Axis) -> None:
    """A logarithmic axis whose numbers are written out, at least three of them."""
    least, most = sorted(axis.get_view_interval())
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = LogLocator(10, digits).tick_values(least, most)
        ticks = [tick for tick in ticks if least <= tick <= most]
        if len(ticks) >= 3:
            break
    else:
        ticks = MaxNLocator(4).tick_values(least, most)
        ticks = [tick for tick in ticks if least <= tick <= most and tick > 0]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number in few characters: 2.5e-4, 0.004, 2,500, 300k, 1.2M."""
    if 0 < abs(value) < 1e-3:
        digits, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    size, prefix = next((pair for pair in PREFIXES if abs(value) >= max(pair[0], 1e4)), (1.0, ""))
    return f"{value / size:,.4g}{prefix}" if prefix else f"{value:,.6g}"
