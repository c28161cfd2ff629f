"""How loss and perplexity fall with size: lines, where they meet, and how sure that is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from mlx_pam.analysis.scaling.fits import Line, fit_line, weights
from mlx_pam.analysis.scaling.floor import Floor, fit_floor
from mlx_pam.analysis.scaling.points import Late, Point
from mlx_pam.analysis.scaling.resampling import (
    Interval,
    Samples,
    interval,
    meetings,
    resample,
    without_each,
)

Quantity = Literal["loss", "perplexity"]
QUANTITIES: tuple[Quantity, ...] = ("loss", "perplexity")
FARTHEST = 30.0
"""log10 N beyond which lines are called parallel."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The line of one family."""

    family: str
    quantity: Quantity
    size: str
    """How parameters are counted."""
    runs: int
    scales: tuple[str, ...]
    weighted: bool
    """Whether by the deviations of the late window; else every run weighs the same."""
    line: Line | None
    """None with fewer than two sizes."""
    samples: Samples | None = field(repr=False)
    slope_interval: Interval | None
    without: Mapping[str, Line]
    """The line when one scale is left out."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where the lines of two families meet."""

    families: tuple[str, str]
    """The one whose loss falls faster first."""
    quantity: Quantity
    size: str
    kind: Literal["beyond", "within", "before", "parallel"]
    """The sizes measured; lines that met before them part as models grow."""
    parameters: float | None
    value: float | None
    """Loss or perplexity there."""
    factor: float | None
    """Parameters there, by those of the largest model."""
    interval: Interval | None
    """Of parameters; infinite where the lines of a sample do not meet as models grow."""
    never: float | None
    """Share of the samples in which they do not."""
    skipped: int
    """Samples left out, since a family's runs had one size."""
    without: Mapping[str, float]
    """Parameters when one scale is left out, infinite where the lines then never meet."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that `mlx_pam scaling` says."""

    source: str
    points: tuple[Point, ...]
    left_out: Mapping[str, str]
    """Runs that were not used, and why."""
    fits: tuple[Fit, ...]
    crossings: tuple[Crossing, ...]
    floors: tuple[Floor, ...]

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(point.family for point in self.points))

    @property
    def sizes(self) -> list[str]:
        """How parameters are counted; the first is what lines are drawn over."""
        return list(self.points[0].sizes)

    def fit(self, family: str, quantity: Quantity, size: str) -> Fit:
        (found,) = (
            fit for fit in self.fits
            if (fit.family, fit.quantity, fit.size) == (family, quantity, size)
        )  # fmt: skip
        return found

    def crossings_of(self, quantity: Quantity, size: str) -> list[Crossing]:
        return [c for c in self.crossings if (c.quantity, c.size) == (quantity, size)]

    def of(self, family: str) -> list[Point]:
        return [point for point in self.points if point.family == family]


def study(
    points: Sequence[Point],
    source: str = "",
    left_out: Mapping[str, str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> Study:
    """Fit every family, by every count of parameters, and set each two families side by side."""
    points = sorted(points, key=lambda point: (point.family, point.sizes["total"], point.run))
    families = {
        name: list(group) for name, group in itertools.groupby(points, key=lambda p: p.family)
    }
    fits, crossings, floors = [], [], []
    for size in points[0].sizes:
        for quantity in QUANTITIES:
            found = [
                _fit(name, group, quantity, size, resamples, seed)
                for name, group in families.items()
            ]
            fits += found
            for a, b in itertools.combinations(found, 2):
                if a.line and b.line:
                    largest = [max(p.sizes[size] for p in families[f.family]) for f in (a, b)]
                    smallest = [min(p.sizes[size] for p in families[f.family]) for f in (a, b)]
                    crossings.append(_crossing(a, b, min(smallest), max(largest)))
        for name, group in families.items():
            number, loss, weight = _columns(group, "loss", size)
            scales = [point.scale for point in group]
            floors.append(fit_floor(name, size, scales, number, loss, weight))
    return Study(
        source=source,
        points=tuple(points),
        left_out=dict(left_out or {}),
        fits=tuple(fits),
        crossings=tuple(crossings),
        floors=tuple(floor for floor in floors if floor),
    )


def _columns(
    group: Sequence[Point], quantity: Quantity, size: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Parameters, values and weights of a family's runs, [n] each."""
    measured: list[Late] = [getattr(point, quantity) for point in group]
    means = np.array([late.mean for late in measured])
    number = np.array([point.sizes[size] for point in group], float)
    return number, means, weights(means, [late.deviation for late in measured])


def _fit(
    name: str, group: Sequence[Point], quantity: Quantity, size: str, resamples: int, seed: int
) -> Fit:
    number, means, weight = _columns(group, quantity, size)

    def fit_some(kept: np.ndarray) -> Line | None:
        return fit_line(number[kept], means[kept], None if weight is None else weight[kept])

    line = fit_some(np.ones(len(group), bool))
    samples = resample(name, number, means, weight, resamples, seed) if line else None
    known = samples is not None and samples.kept.any()
    return Fit(
        family=name,
        quantity=quantity,
        size=size,
        runs=len(group),
        scales=tuple(dict.fromkeys(point.scale for point in group)),
        weighted=weight is not None,
        line=line,
        samples=samples if known else None,
        slope_interval=interval(samples.slope[samples.kept]) if samples and known else None,
        without=without_each([point.scale for point in group], fit_some) if line else {},
    )


def _crossing(a: Fit, b: Fit, smallest: float, largest: float) -> Crossing:
    """Of two families that have a line each."""
    if a.line.slope > b.line.slope:
        a, b = b, a
    met = _meet(a.line, b.line)
    kind = "parallel"
    if math.isfinite(met):
        kind = "within" if met <= math.log10(largest) else "beyond"
        kind = "before" if met < math.log10(smallest) else kind
    sampled = None
    if a.samples and b.samples and kind != "parallel":
        sampled = meetings(a.samples, b.samples)
    bounds = interval(sampled) if sampled is not None and len(sampled) else None
    known = math.isfinite(met)
    return Crossing(
        families=(a.family, b.family),
        quantity=a.quantity,
        size=a.size,
        kind=kind,
        parameters=10**met if known else None,
        value=10 ** a.line.at(met) if known else None,
        factor=10**met / largest if known else None,
        interval=Interval(_power(bounds.low), _power(bounds.high)) if bounds else None,
        never=float(np.isinf(sampled).mean()) if bounds else None,
        skipped=len(a.samples.kept) - len(sampled) if sampled is not None else 0,
        without=_without(a, b),
    )


def _without(a: Fit, b: Fit) -> dict[str, float]:
    """Parameters where the lines meet when a scale is left out of both families."""
    found = {}
    for scale in dict.fromkeys((*a.scales, *b.scales)):
        lines = [f.without.get(scale) if scale in f.scales else f.line for f in (a, b)]
        if all(lines):
            found[scale] = _power(_meet(*lines))
    return found


def _meet(steeper: Line, flatter: Line) -> float:
    """log10 N where two lines meet; infinite where the first does not fall faster."""
    difference = steeper.slope - flatter.slope
    if difference >= 0:
        return math.inf
    met = (flatter.intercept - steeper.intercept) / difference
    return met if abs(met) <= FARTHEST else math.inf


def _power(exponent: float) -> float:
    return 10**exponent if exponent <= FARTHEST else math.inf
