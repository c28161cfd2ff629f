"""How the pictures look: colours, type, and the colour of a complex number."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

mpl.use("svg")

PAPER, INK, SOFT, LINE = "#fcfcfa", "#24292f", "#656d76", "#d0d7de"
BLUE, ORANGE, GREEN, VIOLET = "#2f6db3", "#d9722b", "#2e8562", "#7a5bb5"
COLOURS = {"recurrent": VIOLET, "parallel": ORANGE, "chunkwise": GREEN, "fused": BLUE}

plt.rcParams |= {
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER,
    "axes.edgecolor": SOFT, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": SOFT, "ytick.color": SOFT, "axes.spines.top": False, "axes.spines.right": False,
    "font.size": 10, "axes.titlesize": 11, "mathtext.fontset": "cm", "axes.titlelocation": "left",
    "grid.color": LINE, "grid.linewidth": 0.6, "legend.frameon": False,
    "svg.hashsalt": "mlx_pam",  # the same picture is the same file
}  # fmt: skip


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def canvas(width: float, height: float, x: float, y: float) -> tuple[Figure, Axes]:
    """A figure of so many inches, empty, whose axes count from 0 to x and to y, y downwards."""
    figure, axes = plt.subplots(figsize=(width, height))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, x), ylim=(y, 0), aspect="equal")
    axes.axis("off")
    return figure, axes


def colour(z: np.ndarray) -> np.ndarray:
    """Phase as hue and magnitude, of 1 at most, as strength: `[...]` complex -> `[..., 3]`.

    Hues of one lightness, from OKLCH; 0 is the paper.
    """
    angle, strength = np.angle(z) + np.pi / 6, np.clip(np.abs(z), 0, 1)[..., None]
    a, b = 0.135 * np.cos(angle), 0.135 * np.sin(angle)
    light = 0.68
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = np.stack(
        [
            4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
        ],
        axis=-1,
    ).clip(0, 1)
    full = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    paper = np.array(mpl.colors.to_rgb(PAPER))
    return paper + strength**0.7 * (full - paper)


def cells(axes: Axes, z: np.ndarray, x: float, y: float, size: float = 1.0) -> None:
    """A complex matrix as coloured squares, its upper left corner at (x, y)."""
    z = np.atleast_2d(z)
    for (row, column), value in np.ndenumerate(z):
        place = (x + column * size, y + row * size)
        face = colour(np.asarray(value))
        axes.add_patch(Rectangle(place, size, size, facecolor=face, edgecolor=PAPER, lw=0.8))
    rows, columns = z.shape
    outline = Rectangle((x, y), columns * size, rows * size, fill=False, edgecolor=SOFT, lw=0.9)
    axes.add_patch(outline)


def wheel(axes: Axes, x: float, y: float, radius: float) -> None:
    """What the colours of complex numbers mean."""
    rings, spokes = 5, 36
    for ring in range(rings):
        for spoke in range(spokes):
            low, high = (2 * np.pi * (spoke + i) / spokes for i in (0, 1))
            inner, outer = (radius * (ring + i) / rings for i in (0, 1))
            corners = [(inner, low), (outer, low), (outer, high), (inner, high)]
            points = [(x + r * np.cos(angle), y - r * np.sin(angle)) for r, angle in corners]
            z = (ring + 0.7) / rings * np.exp(0.5j * (low + high))
            axes.fill(*zip(*points, strict=True), color=colour(np.asarray(z)), lw=0.2)


def arrow(axes: Axes, start, end, color: str = SOFT, width: float = 1.3, bend: float = 0.0) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 11, "shrinkA": 0, "shrinkB": 0}
    curve = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(start, end, color=color, lw=width, connectionstyle=curve, **style)
    )


def card(
    axes: Axes, x: float, y: float, width: float, height: float, color: str, text: str = "",
    size: float = 10, strength: float = 0.14,
) -> None:  # fmt: skip
    """A rounded box of a colour with a text in its middle."""
    paper, full = (np.array(mpl.colors.to_rgb(c)) for c in (PAPER, color))
    face = paper + strength * (full - paper)
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle=shape, facecolor=face, edgecolor=color, lw=1.1
        )
    )
    middle = x + width / 2, y + height / 2
    axes.text(*middle, text, ha="center", va="center", fontsize=size, linespacing=1.35)
