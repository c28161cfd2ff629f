"""Plots of the study: of the runs and rows that the repository keeps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import BLUE, GREEN, INK, ORANGE, SOFT, VIOLET

from mlx_pam.analysis.scaling.curves import draw_convergence
from mlx_pam.analysis.scaling.drawing import draw_scaling
from mlx_pam.analysis.scaling.points import read_points
from mlx_pam.analysis.scaling.study import study
from mlx_pam.benchmarks import recall, rows
from mlx_pam.benchmarks.study import STUDIES, Outcome, outcomes

WINDOW = 0.2
FAMILIES = {
    "pam": BLUE, "pam recall": GREEN, "sam": ORANGE, "sam recall": "#8a5a00", "transformer": VIOLET,
}  # fmt: skip
PARTS = {
    "pam recall": GREEN,
    "pam recall, residual scale 0.1": BLUE,
    "pam recall, q and k free": ORANGE,
    "pam recall, no convolution": VIOLET,
}


def study_scaling() -> Figure:
    """What `mlx_pam scaling benchmarks/results/studies/wikipedia --out` draws."""
    points, _ = read_points(STUDIES / "wikipedia", WINDOW)
    return draw_scaling(study(points), "body")


def study_convergence() -> Figure:
    """Its second picture."""
    points, _ = read_points(STUDIES / "wikipedia", WINDOW)
    return draw_convergence(study(points))


def study_ablations() -> Figure:
    """How far the loss of each variant is from plain PAM's, a dot for each seed."""
    runs = outcomes(STUDIES / "ablations")
    base = {run.seed: run.loss for run in runs if run.model == "pam"}
    (usual,) = {run.rate for run in runs if run.model == "pam"}
    groups: dict[str, list[Outcome]] = {}
    for run in (run for run in runs if run.model != "pam"):
        rate = "" if run.rate == usual else f", rate {run.rate:g}"
        groups.setdefault(run.model.removeprefix("pam ") + rate, []).append(run)
    apart = {name: [run.loss - base[run.seed] for run in group] for name, group in groups.items()}
    names = sorted(apart, key=lambda name: -statistics.fmean(apart[name]))

    figure, axes = plt.subplots(figsize=(8, 0.4 * len(names) + 1.1))
    figure.subplots_adjust(0.19, 0.17, 0.97, 0.9)
    axes.axvline(0, color=SOFT, lw=0.9, zorder=1)
    for row, name in enumerate(names):
        mean = statistics.fmean(apart[name])
        colour = GREEN if mean < 0 else ORANGE
        axes.plot([0, mean], [row, row], color=colour, lw=2.4, solid_capstyle="butt", zorder=2)
        axes.plot(apart[name], [row] * len(apart[name]), "o", color=colour, ms=6, mec="white",
                  zorder=3)  # fmt: skip
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(ylim=(-0.6, len(names) - 0.4), xlabel="loss − that of plain PAM, nats a byte")
    axes.set_title("Variants of PAM at 300k, a dot for each seed", color=SOFT)
    return figure


def study_recall() -> Figure:
    """How models of one size learn associative recall, each at its best rate."""
    measured = rows.read(recall.RESULTS)
    runs = {name: recall.best_rate(recall.by_rate(measured, name)) for name in recall.MODELS}
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    figure.subplots_adjust(0.06, 0.13, 0.98, 0.9, wspace=0.08)
    titles = ("Families, plain and with recall", "Parts of recall, each left out")
    for axes, title, shown in zip(panels, titles, (FAMILIES, PARTS), strict=True):
        for name, colour in shown.items():
            _learning(axes, name, colour, runs[name])
        axes.axhline(measured[0]["chance"], color=SOFT, lw=0.9, ls=(0, (4, 3)), zorder=0)
        axes.set(xlim=(0, None), ylim=(0, 1.02), xlabel="million tokens trained on")
        axes.set_title(title, color=SOFT)
        axes.grid(axis="y")
        axes.legend(loc="center right", fontsize=8.6, bbox_to_anchor=(1, 0.44))
    panels[0].set_ylabel("questions answered rightly")
    panels[0].text(0.02, measured[0]["chance"] + 0.015, "chance", color=SOFT, fontsize=8.6)
    return figure


def _learning(axes: Axes, name: str, colour: str, runs: Sequence[dict]) -> None:
    for run in runs:
        step = np.array([0] + [point["step"] for point in run["curve"]])
        accuracy = [0.0] + [point["accuracy"] for point in run["curve"]]
        axes.plot(step * run["tokens"] / run["steps"] / 1e6, accuracy, color=colour, lw=1.5,
                  label=name if run is runs[0] else None)  # fmt: skip
