"""Plots of memory in training, of rows that the benchmarks keep."""

from __future__ import annotations

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from style import BLUE, ORANGE, SOFT

from mlx_pam.benchmarks import rows

NAMES = {"mlx": ("MLX", BLUE), "torch": ("PyTorch", ORANGE)}


def flat_memory() -> Figure:
    """What a process holds over a thousand steps, and the most it has held."""
    figure, axes = plt.subplots(figsize=(8, 3.6))
    figure.subplots_adjust(0.085, 0.14, 0.97, 0.9)
    latest = {row["backend"]: row for row in rows.read(rows.RESULTS / "flat.jsonl")}
    for backend, row in latest.items():
        name, colour = NAMES[backend]
        peak, resident = np.array(row["peak"]) / 1e6, np.array(row["resident"]) / 1e6
        step = np.arange(1, len(peak) + 1)
        axes.plot(step, peak, color=colour, lw=1, ls=(0, (4, 2)), label=f"{name}, at most so far")
        axes.plot(step, resident, color=colour, lw=1.4, label=f"{name}, held after the step")
    every = next(iter(latest.values()))["events"]["eval_every"]
    for step in range(every, len(peak) + 1, every):
        axes.axvline(step, color=SOFT, lw=0.5, alpha=0.35, zorder=0)
    axes.set(xlim=(0, len(peak)), ylim=(0, None), xlabel="step", ylabel="MB")
    axes.set_title("Memory of a process; a line at each evaluation and checkpoint", color=SOFT)
    axes.legend(loc="center right", fontsize=9)
    return figure
