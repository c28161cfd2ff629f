"""Drawings of what the operator stores, reads and forgets; every colour is a computed number."""

from __future__ import annotations

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from style import (
    BLUE,
    GREEN,
    INK,
    LINE,
    ORANGE,
    PAPER,
    SOFT,
    VIOLET,
    arrow,
    canvas,
    card,
    cells,
    wheel,
)

MASKED, CARRIED = "#c9ddf2", "#f6dcc7"


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    re, im = rng.standard_normal((2, *shape))
    return (re + 1j * im) / np.sqrt(2 * shape[-1])


def write_and_read() -> Figure:
    """S_t = gamma S_{t-1} + v k^H, and y = S q, in numbers."""
    d, rng = 5, np.random.default_rng(3)
    old = sum(np.outer(_normal(rng, d), _normal(rng, d).conj()) for _ in range(3))
    k, v = _normal(rng, d), _normal(rng, d)
    q = k * np.exp(0.15j * rng.standard_normal(d)) + 0.25 * _normal(rng, d)
    gamma = 0.8
    new = gamma * old + np.outer(v, k.conj())
    y = new @ q
    strongest = max(np.abs(x).max() for x in (old, new))
    scale = {"state": 1 / strongest, "row": 0.9 / max(np.abs(x).max() for x in (k, v, q, y))}

    figure, axes = canvas(9, 4.8, 30, 16)

    def label(x: float, y: float, text: str, size: float = 13, **more) -> None:
        axes.text(x, y, text, va="center", fontsize=size, **{"ha": "center", **more})

    label(0.6, 0.95, "write", 11, weight="bold", color=BLUE, ha="left")
    top = 2.2
    label(1.5, top + 2.5, r"$\gamma_t$", 17)
    cells(axes, old * scale["state"], 2.6, top)
    label(5.1, top + 5.75, r"$S_{t-1}$")
    label(8.6, top + 2.5, "+", 17)
    cells(axes, v[:, None] * scale["row"], 9.8, top)
    label(10.3, top + 5.75, r"$v_t$")
    cells(axes, k.conj()[None] * scale["row"], 11.5, top + 2)
    label(14, top + 3.75, r"$k_t^{\mathrm{H}}$")
    label(17.6, top + 2.5, "=", 17)
    cells(axes, new * scale["state"], 18.8, top)
    label(21.3, top + 5.75, r"$S_t$")
    axes.text(
        24.5, top + 0.1,
        "one matrix a head:\n$d \\times d$ complex\nnumbers, however\nlong the text",
        va="top", fontsize=9.5, color=SOFT, linespacing=1.5,
    )  # fmt: skip

    label(0.6, 9.15, "read", 11, weight="bold", color=ORANGE, ha="left")
    top = 9.7
    cells(axes, new * scale["state"], 2.6, top)
    label(5.1, top + 5.4, r"$S_t$", 12)
    cells(axes, q[:, None] * scale["row"], 8.6, top)
    label(9.1, top + 5.4, r"$q_t$", 12)
    label(10.9, top + 2.5, "=", 17)
    cells(axes, y[:, None] * scale["row"], 12.2, top)
    label(12.7, top + 5.4, r"$y_t$", 12)
    label(14.6, top + 2.5, r"$\approx$", 17)
    alignment = np.vdot(k, q) / np.linalg.norm(k) / np.linalg.norm(q)
    cells(axes, v[:, None] * scale["row"], 15.9, top)
    label(16.4, top + 5.4, r"$v_t$", 12)
    axes.text(
        17.8, top + 0.35,
        "$q_t$ is almost in phase\n"
        f"with $k_t$: $|\\langle k_t, q_t\\rangle|$ is\n{abs(alignment):.2f} of $|k_t||q_t|$, so\n"
        "$v_t$ comes back, and a\nlittle of older values",
        va="top", fontsize=9.5, color=SOFT, linespacing=1.5,
    )  # fmt: skip
    wheel(axes, 26.9, 12.0, 1.9)
    for angle, text, align in (
        (0, " 1", "left"), (90, "i", "center"), (180, "−1 ", "right"), (270, "−i", "center")
    ):  # fmt: skip
        x, y = 26.9 + 2.35 * np.cos(np.radians(angle)), 12.0 - 2.5 * np.sin(np.radians(angle))
        axes.text(x, y, text, ha=align, va="center", fontsize=9, color=SOFT)
    return figure


def interference() -> Figure:
    """Products of a query's channels with a key's: head to tail, and what all keys come to."""
    d, count, rng = 64, 400, np.random.default_rng(5)
    q = _normal(rng, d)
    q /= np.linalg.norm(q)
    keys = _normal(rng, count, d)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    match = q * np.exp(0.45j * rng.standard_normal(d))
    match /= np.linalg.norm(match)

    figure, panels = plt.subplots(1, 3, figsize=(9, 2.75))
    figure.subplots_adjust(0.02, 0.04, 0.985, 0.89, wspace=0.06)
    for axes, key, color, title in (
        (panels[0], match, BLUE, "a key in phase with the query"),
        (panels[1], keys[7], ORANGE, "some other key"),
    ):
        path = np.concatenate([[0], np.cumsum(key.conj() * q)])
        axes.plot(path.real, path.imag, color=color, lw=1.3, marker="o", ms=2.2)
        axes.annotate(
            "", (path[-1].real, path[-1].imag), (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.3, "shrinkA": 0, "shrinkB": 0,
                        "mutation_scale": 10},
        )  # fmt: skip
        axes.set_title(title)
        total = f"$|\\langle k, q\\rangle|$ = {abs(path[-1]):.2f}"
        axes.text(0.3, 0.04, f"{d} channels, head to tail\n{total}", transform=axes.transAxes,
                  fontsize=9.5, color=SOFT, linespacing=1.5)  # fmt: skip
    scores = keys.conj() @ q
    panels[2].scatter(scores.real, scores.imag, s=6, color=ORANGE, alpha=0.55, lw=0)
    hit = np.vdot(match, q)
    panels[2].scatter([hit.real], [hit.imag], s=34, color=BLUE, zorder=3)
    panels[2].add_patch(plt.Circle((0, 0), d**-0.5, fill=False, color=SOFT, lw=0.9, ls=(0, (4, 3))))
    panels[2].annotate(
        r"$1/\sqrt{d}$", (0.06, 0.107), (0.3, 0.36), fontsize=10, color=SOFT, ha="center",
        arrowprops={"arrowstyle": "-", "color": SOFT, "lw": 0.8},
    )  # fmt: skip
    panels[2].set_title(f"scores of {count} others, and its own")
    for axes in panels:
        axes.set(xlim=(-0.36, 1.04), ylim=(-0.56, 0.56), aspect="equal", xticks=[], yticks=[])
        axes.axhline(0, color=LINE, lw=0.8, zorder=0)
        axes.axvline(0, color=LINE, lw=0.8, zorder=0)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure


def chunks() -> Figure:
    """Which scores are computed: all T x T of them, or those inside chunks and a state between."""
    n, size = 5, 6
    figure, axes = canvas(9, 4.75, 76, 40)
    whole = n * size

    def matrix(left: float, top: float, chunk: int) -> None:
        for at in range(0, whole, chunk):
            x, y = left + at, top + at
            axes.fill([x, x + chunk, x + chunk, x], [y, y, y + chunk, y + chunk], MASKED, lw=0)
            stairs = [(x, y + chunk), (x, y)]
            for t in range(chunk):
                stairs += [(x + t + 1, y + t), (x + t + 1, y + t + 1)]
            axes.fill(*zip(*stairs, strict=True), BLUE, lw=0)
            axes.fill([left, x, x, left], [y, y, y + chunk, y + chunk], CARRIED, lw=0)
        frame = plt.Rectangle((left, top), whole, whole, fill=False, edgecolor=SOFT, lw=0.9)
        axes.add_patch(frame)

    top, first, second = 5.5, 3.5, 42.5
    matrix(first, top, whole)
    matrix(second, top, size)
    axes.text(first, 1.9, "parallel", fontsize=11.5, weight="bold", va="center")
    axes.text(first + 8.4, 1.9, "T × T scores", fontsize=10, color=SOFT, va="center")
    axes.text(second, 1.9, "chunkwise, fused", fontsize=11.5, weight="bold", va="center")
    axes.text(second + 16.6, 1.9, "C × C scores a chunk", fontsize=10, color=SOFT, va="center")
    for left in (first, second):
        axes.text(left + whole / 2, 4.5, "key and value of token $i$", fontsize=9, color=SOFT,
                  ha="center", va="center")  # fmt: skip
        axes.text(left - 1.2, top + whole / 2, "query of token $t$", fontsize=9, color=SOFT,
                  rotation=90, ha="center", va="center")  # fmt: skip
    for block in range(1, n):
        y = top + block * size
        axes.plot([second, second + block * size], [y, y], color=PAPER, lw=1.6)
        tip = second + block * size
        axes.scatter([tip], [y], s=118, color=ORANGE, zorder=4)
        axes.text(tip, y, f"$S_{block}$", fontsize=8.5, color="white", ha="center", va="center",
                  zorder=5)  # fmt: skip
    for x, color, text in (
        (3.5, BLUE, "score computed and used"),
        (28.2, MASKED, "computed, then masked"),
        (50.6, CARRIED, "not computed: read from the state"),
    ):
        axes.add_patch(plt.Rectangle((x, 37.3), 1.5, 1.5, facecolor=color, edgecolor=SOFT, lw=0.6))
        axes.text(x + 2.3, 38.1, text, fontsize=9.5, va="center")
    return figure


def flow() -> Figure:
    """How the state goes from chunk to chunk, and what every chunk does by itself."""
    figure, axes = canvas(9, 4.3, 30, 14.3)
    width, gap, left = 5.6, 2.2, 4.5
    centres = [left + i * (width + gap) + width / 2 for i in range(3)]

    def note(y: float, step: str, text: str) -> None:
        axes.text(0.5, y, step, fontsize=10, weight="bold", va="center")
        axes.text(0.5, y + 0.75, text, fontsize=8.6, color=SOFT, va="center")

    note(2.5, "writes", "all at once")
    note(6.6, "carry", "one after\nthe other")
    note(11.0, "reads", "all at once")
    names = ("first chunk", "second chunk", "last chunk")
    for i, (x, name) in enumerate(zip(centres, names, strict=True)):
        axes.text(x, 0.65, f"{name}, C tokens", fontsize=9.5, color=SOFT, ha="center", va="center")
        own = rf"$W_{i + 1} = \sum_t\,(\gamma_{{t+1}}\cdots\gamma_C)\, v_t k_t^{{\mathrm{{H}}}}$"
        card(axes, x - width / 2, 1.5, width, 2.1, BLUE, own, 10.2)
        card(axes, x - width / 2, 9.6, width, 3.4, GREEN,
             rf"$(\gamma_1\cdots\gamma_t)\, S_{i}\, q_t$" + "\nfrom earlier chunks\n"
             r"$+\;((QK^{\mathrm{H}})\circ D)\,V$" + "\ninside the chunk", 9.8)  # fmt: skip
        arrow(axes, (x, 3.65), (x, 5.6), BLUE, 1.5)
    y = 6.7
    for i in range(4):
        x = left - gap / 2 + i * (width + gap)
        axes.scatter([x], [y], s=560, color=ORANGE, zorder=3, lw=0)
        axes.text(x, y, f"$S_{i}$", color="white", fontsize=12, ha="center", va="center", zorder=4)
        if i < 3:
            arrow(axes, (x + 0.7, y), (centres[i] - 1.75, y), ORANGE, 1.7)
            card(axes, centres[i] - 1.7, y - 1.05, 3.4, 2.1, ORANGE,
                 rf"$\gamma_1\cdots\gamma_C\;S_{i}$" + f"\n$+\\;W_{i + 1}$", 10)  # fmt: skip
            arrow(axes, (centres[i] + 1.7, y), (x + width + gap - 0.68, y), ORANGE, 1.7)
            arrow(axes, (x + 0.2, y + 0.72), (centres[i] - 1.4, 9.55), GREEN, 1.5, 0.15)
    axes.text(27.0, 8.35, "to the\nnext call", fontsize=9, color=SOFT, ha="center", va="center",
              linespacing=1.4)  # fmt: skip
    axes.text(
        15, 13.85,
        "backward, the same picture from right to left: adjoints of the state are carried"
        " from the last chunk to the first",
        fontsize=9, color=VIOLET, ha="center", va="center",
    )  # fmt: skip
    return figure
