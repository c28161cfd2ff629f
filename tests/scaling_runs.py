"""Folders of runs that never were, whose losses follow a law of their size; imported by tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from written_log import end, evaluation, start, step, write_log

from mlx_pam.analysis.scaling.points import sizes
from mlx_pam.config import PRESETS

SCALES = ("5m", "10m", "25m", "50m", "100m")
EVALUATIONS = 10
STEPS_BETWEEN = 5


def parameters(family: str, scale: str, count: str = "total") -> int:
    return sizes(PRESETS[family][scale])[count]


def write_run(
    folder: Path, family: str, scale: str, loss: float, seed: int = 0, late: float = 0.0,
    ended: str = "finished", **config: Any,
) -> Path:  # fmt: skip
    """A run whose last two evaluations are `loss` - `late` and `loss` + `late`.

    The earlier ones come down to it.
    """
    settings = {"model": family, "scale": scale, "seed": seed, "data": "a-text", "seq_len": 64}
    plan = {"model": PRESETS[family][scale].to_dict(), "parameters": parameters(family, scale)}
    log = [start(config=settings | config, plan=plan | {"steps": EVALUATIONS * STEPS_BETWEEN})]
    for i in range(1, EVALUATIONS + 1):
        above = 2.0 * 0.5**i if i < EVALUATIONS - 1 else late * (-1) ** i
        last = i * STEPS_BETWEEN
        steps = range(last - STEPS_BETWEEN + 1, last + 1)
        log += [step(number, loss + above) for number in steps]
        log.append(evaluation(last, loss + above))
    variant = f"-{config['variant']}" if config.get("variant") else ""
    name = f"{family}{variant}-{scale}-{seed}"
    return write_log(folder / name, *log, end(last, ended))


def write_sweep(
    folder: Path, laws: dict[str, Callable[[float], float]], scales=SCALES, **options: Any
) -> Path:
    """A run of each family at each scale, whose loss is the family's law of its parameters."""
    for family, law in laws.items():
        for scale in scales:
            write_run(folder, family, scale, law(parameters(family, scale)), **options)
    return folder


def power_law(slope: float, meets: float, value: float) -> Callable[[float], float]:
    """The line in log-log space with this slope through a size and a value."""
    return lambda size: value * (size / meets) ** slope
