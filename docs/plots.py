"""Plots of what the operator computes and costs: of real arrays, and of the counts of bytes."""

from __future__ import annotations

import math

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from style import BLUE, COLOURS, GREEN, INK, ORANGE, PAPER, SOFT

from mlx_pam import blas
from mlx_pam.benchmarks import cost_model
from mlx_pam.config import PRESETS
from mlx_pam.decoder_state import state_shapes

blas.preload()  # before mlx

import mlx.core as mx  # noqa: E402

from mlx_pam.ops import retrieval  # noqa: E402

FLOAT32 = 4
FORMS = ("recurrent", "parallel", "chunkwise", "fused")


def decay_matrix() -> Figure:
    """D of a text in which something is held for long, and something forgotten at once."""
    time = 64
    gamma = np.full(time, 0.93)
    gamma[24:40] = 0.999
    gamma[48] = 0.0
    with np.errstate(divide="ignore"):
        log_decay = mx.array(np.log(gamma).astype(np.float32))
    matrix = np.array(retrieval.decay_matrix(log_decay))  # [T, T]

    figure, (side, axes) = plt.subplots(1, 2, figsize=(9, 4.5), width_ratios=[1, 3.1], sharey=True)
    figure.subplots_adjust(0.065, 0.115, 0.745, 0.92, wspace=0.06)
    rows = np.arange(time)
    side.barh(rows, gamma, height=0.72, color=GREEN, lw=0)
    side.set(xlim=(0, 1.05), ylim=(time - 0.5, -0.5), xticks=[0, 1], ylabel="token $t$")
    side.set_title(r"$\gamma_t$, chosen by the token", fontsize=10)
    shades = LinearSegmentedColormap.from_list("shades", [PAPER, "#a9c9ea", BLUE, "#173e6b"])
    shown = np.where(rows[:, None] >= rows[None, :], matrix, np.nan)
    image = axes.imshow(shown, cmap=shades, vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="token $i$, whose value was written", aspect="equal")
    axes.set_title(r"$D[t, i] = \gamma_{i+1} \cdots \gamma_t$", fontsize=11)
    bar = figure.colorbar(image, cax=figure.add_axes([0.775, 0.17, 0.19, 0.024]),
                          orientation="horizontal")  # fmt: skip
    bar.set_ticks([0, 0.5, 1])
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8.5, length=2)
    bar.ax.set_title("what is left", fontsize=9.3, color=INK)
    axes.text(61, 3, "the future: left out\nbefore any exponential", fontsize=9.3, color=SOFT,
              ha="right", va="center", linespacing=1.4)  # fmt: skip
    for row, text in (
        (12, "$\\gamma$ = 0.93: a write fades\nwithin some ten tokens"),
        (32, "$\\gamma$ = 0.999: what is there\nis held while these pass"),
        (48, "$\\gamma$ = 0: all that was written\nbefore is forgotten, exactly"),
    ):
        axes.annotate(
            text, (row + 0.8, row), (time + 4, row), fontsize=9.3, va="center", linespacing=1.4,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": SOFT, "lw": 0.8, "shrinkB": 2},
        )  # fmt: skip
    return figure


def cost() -> Figure:
    """Operations and bytes a token, by the cost model's counts."""
    d = PRESETS["pam"]["100m"].head_dim
    lengths = np.array([1 << n for n in range(6, 16)])
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9))
    figure.subplots_adjust(0.07, 0.2, 0.9, 0.9, wspace=0.42)
    nudge = {"fused": 3, "recurrent": -4}
    chunk = {"chunkwise": retrieval.chunk_size(d), "fused": 32}
    for axes, field, unit, title in (
        (panels[0], "operations", 1e3, "thousand operations"),
        (panels[1], "bytes", 1e3, "kB moved to and from memory"),
    ):
        for form in FORMS:
            values = []
            for time in lengths:
                shape = cost_model.Shape(1, int(time), 1, d)
                parts = cost_model.operator(form, shape, chunk.get(form, 0))
                values.append(sum(getattr(part, field) for part in parts) / time / unit)
            axes.plot(lengths, values, color=COLOURS[form], lw=2)
            axes.annotate(form, (lengths[-1], values[-1]), (5, nudge.get(form, 0)),
                          textcoords="offset points", color=COLOURS[form], va="center",
                          annotation_clip=False)  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="T, tokens of a text")
        axes.set_xticks([64, 512, 4096, 32768], ["64", "512", "4,096", "32,768"])
        axes.set_xticks([], minor=True)
        axes.set_title(f"{title}, a token and head", fontsize=10.5)
        axes.grid(axis="y")
    note = (
        "MODEL: counts, not measurements. d = 64, float32, forward; "
        "fused by Metal kernels, the others by separate operations"
    )
    figure.text(0.07, 0.03, note, fontsize=9, color=SOFT)
    return figure


def state_and_cache() -> Figure:
    """Bytes that decoding keeps of a text, for models of one size."""
    contexts = np.array([1 << n for n in range(18)])
    figure, axes = plt.subplots(figsize=(9, 3.9))
    figure.subplots_adjust(0.115, 0.135, 0.825, 0.93)

    def held(family: str, context: int) -> int:
        shapes = state_shapes(PRESETS[family]["100m"], 1, context).values()
        return FLOAT32 * sum(math.prod(shape) for shape in shapes)

    for family, color, name in (
        ("transformer", ORANGE, "keys and values\nof a transformer"),
        ("pam", BLUE, "state of a PAM"),
    ):
        sizes = [held(family, int(context)) for context in contexts]
        axes.plot(contexts, sizes, color=color, lw=2.4)
        axes.annotate(name, (contexts[-1], sizes[-1]), (8, 0), textcoords="offset points",
                      color=color, fontsize=10, va="center", annotation_clip=False)  # fmt: skip
    state = held("pam", 0)
    even = state / held("transformer", 1)
    axes.scatter([even], [state], s=30, color=INK, zorder=4)
    axes.annotate(f"even at {even:.0f} tokens", (even, state), (-8, 16), ha="right", fontsize=9.5,
                  textcoords="offset points")  # fmt: skip
    for context in (2048, 32768):
        cache = held("transformer", context)
        axes.plot([context, context], [state, cache], color=SOFT, lw=0.9, ls=(0, (3, 3)))
        axes.annotate(f"{cache / state:,.0f} times", (context, math.sqrt(state * cache)), (5, 0),
                      textcoords="offset points", fontsize=9.5, va="center")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(1, contexts[-1]))
    axes.set(xlabel="tokens read so far", ylabel="bytes, float32, one text")
    ticks = [1, 16, 256, 2048, 32768, 131072]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks([1e5, 1e6, 1e7, 1e8, 1e9, 1e10], ["100 kB", "1 MB", "10 MB", "100 MB", "1 GB",
                                                      "10 GB"])  # fmt: skip
    axes.grid(axis="y")
    axes.set_title("what decoding keeps of a text, 100m", fontsize=10.5)
    return figure


def numerics() -> Figure:
    """How much of a write is left, by three ways to multiply decays in float32."""
    time, strong = 2048, 64
    gamma = np.full(time, 1 - 1e-5)
    gamma[:strong] = math.exp(-60)  # a text that began with something to be forgotten
    steps = np.log(gamma).astype(np.float32)
    exact = np.exp(np.cumsum(steps[strong:].astype(np.float64)))  # of a write at step `strong`
    long_sums = np.cumsum(steps, dtype=np.float32)
    difference = np.exp(long_sums[strong:] - long_sums[strong - 1])
    product = np.cumprod(np.exp(steps[strong:]), dtype=np.float32)
    ours = np.array(retrieval.decay_matrix(mx.array(steps[strong - 1 :])))[1:, 0]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=[1, 1])
    figure.subplots_adjust(0.075, 0.14, 0.985, 0.87, wspace=0.25)
    age = np.arange(1, time - strong + 1)
    ways = (
        ("difference of two long sums", difference, ORANGE, "-"),
        ("sum over the steps in between", ours, BLUE, "-"),
        ("product of the decays", product, INK, (0, (2, 3))),
    )
    for name, found, color, dashes in ways:
        panels[0].plot(age, found, color=color, lw=2, ls=dashes, label=name)
        error = np.maximum.accumulate(np.abs(found - exact) / exact)
        panels[1].plot(age, np.maximum(error, 1e-9), color=color, lw=2, ls=dashes)
    panels[1].axhline(2.0**-24, color=SOFT, lw=0.9)
    panels[1].text(time - strong, 2.0**-24 * 0.75, "half a last bit of float32", fontsize=9,
                   color=SOFT, ha="right", va="top")  # fmt: skip
    panels[0].set(xlabel="tokens since the write", ylim=(0.976, 1.002))
    panels[0].set_title("what is left of a write, $\\gamma$ = 0.99999", fontsize=10.5)
    panels[0].legend(fontsize=9.3, loc="lower left")
    panels[1].set(xlabel="tokens since the write", yscale="log", ylim=(1e-9, 1e-1))
    panels[1].set_title("largest relative error so far", fontsize=10.5)
    panels[1].grid(axis="y")
    return figure
