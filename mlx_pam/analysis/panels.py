"""Which quantities of a log are drawn, one panel each: a table, to which others may be added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Series:
    """A field of an event, and what is drawn of it."""

    event: str
    field: str
    of: Callable[[np.ndarray], np.ndarray] = lambda values: values
    """A rising function; means are taken before it, so that no peak outweighs the rest."""
    look: tuple[Any, str] | None = None
    """Dashes and colour; None: those of the run."""


@dataclass(frozen=True)
class Panel:
    """Axes with one quantity, of the training alone or of training and validation."""

    name: str
    unit: str
    series: tuple[Series, ...]
    log: bool | Literal["if spread"] = False
    """Whether the axis is logarithmic; `if spread`: where the runs' peaks lie far apart."""
    from_zero: bool = False
    descends: bool = False
    """Whether it begins far above where it will be."""
    noisy: bool = True
    """Whether it is smoothed where that is asked for."""


def _exp(loss: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.exp(loss)


_LOSS = (Series("step", "loss"), Series("evaluation", "loss"))
_PERPLEXITY = tuple(replace(series, of=_exp) for series in _LOSS)
_MEMORY = Series("step", "peak_memory", lambda size: size / 1e9)

PANELS = {
    "loss": Panel("Loss", "nats per token", _LOSS, descends=True),
    "perplexity": Panel("Perplexity", "", _PERPLEXITY, log=True, descends=True),
    "lr": Panel(
        "Learning rate", "", (Series("step", "lr"),), log="if spread", from_zero=True, noisy=False
    ),
    "norm": Panel("Gradient norm", "before clipping", (Series("step", "grad_norm"),), log=True),
    "speed": Panel("Speed", "tokens/s", (Series("step", "tokens_per_s"),), from_zero=True),
    "memory": Panel("Peak memory", "GB", (_MEMORY,), from_zero=True, noisy=False),
}
LAYOUT = (("loss", "loss", "perplexity"), ("loss", "loss", "lr"), ("norm", "speed", "memory"))
"""Where the panels stand in their figure; the first is the one that explains the lines."""
