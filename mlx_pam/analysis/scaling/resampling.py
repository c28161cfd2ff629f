"""How far the runs fix a line and a crossing: resampling of runs, and scales left out."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from mlx_pam.analysis.scaling.fits import lines

T = TypeVar("T")

LEAST_RUNS = 3
"""Runs of a family that resampling needs: of two, every sample that has a line is the same."""
LOWER, MIDDLE, UPPER = 0.025, 0.5, 0.975
CHUNK = 2048
"""Samples that are fitted at once."""


@dataclass(frozen=True)
class Samples:
    """Lines of one family's runs, drawn again and again with replacement."""

    slope: np.ndarray = field(repr=False)
    """[R], NaN where the runs drawn have fewer than two sizes between them."""
    intercept: np.ndarray = field(repr=False)

    @property
    def kept(self) -> np.ndarray:
        """Whether a sample has a line, [R]."""
        return np.isfinite(self.slope)

    @property
    def skipped(self) -> int:
        return int((~self.kept).sum())


@dataclass(frozen=True)
class Interval:
    """The middle 95 % of a quantity over the samples; infinity where it is beyond all bounds."""

    low: float
    high: float


def resample(
    name: str, size: np.ndarray, value: np.ndarray, weight: np.ndarray | None, count: int, seed: int
) -> Samples | None:
    """`count` lines, each of n runs drawn with replacement from the family's n.

    A run is drawn as a whole: its evaluations are not independent of each other. The family's name
    is part of the seed, so that one family's samples do not hang on which others there are. None
    with too few runs.
    """
    if len(size) < LEAST_RUNS:
        return None
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    x, y = np.log10(size), np.log10(value)
    weight = np.ones_like(x) if weight is None else weight
    slopes, intercepts = np.empty(count), np.empty(count)
    for first in range(0, count, CHUNK):
        rows = slice(first, min(first + CHUNK, count))
        drawn = rng.multinomial(len(x), [1 / len(x)] * len(x), size=rows.stop - first)  # [r, n]
        slopes[rows], intercepts[rows] = lines(x, y, drawn * weight)
    return Samples(slopes, intercepts)


def interval(values: np.ndarray) -> Interval:
    """From order statistics, so that infinite values have their place."""
    return Interval(quantile(values, LOWER), quantile(values, UPPER))


def quantile(values: np.ndarray, share: float) -> float:
    """The least value that this share of them does not exceed."""
    return float(np.sort(values)[max(0, math.ceil(share * len(values)) - 1)])


def meetings(a: Samples, b: Samples) -> np.ndarray:
    """log10 N where the lines of each sample meet, [R'], a's being the steeper by all runs.

    Infinite where a's sample is not the steeper one: growing does not bring the families together
    then. Samples without both lines are left out.
    """
    kept = a.kept & b.kept
    slope = (a.slope - b.slope)[kept]
    with np.errstate(divide="ignore", invalid="ignore"):
        met = (b.intercept - a.intercept)[kept] / slope
    return np.where(slope < 0, met, np.inf)


def without_each(scales: Sequence[str], fit: Callable[[np.ndarray], T | None]) -> dict[str, T]:
    """What `fit` makes of the runs but those of one scale, for each scale; `fit` takes a mask [n].

    Scales without which there is nothing to fit are left out.
    """
    names = np.array(scales)
    found = {scale: fit(names != scale) for scale in dict.fromkeys(scales)}
    return {scale: value for scale, value in found.items() if value is not None}
