"""Fits of scaling: straight lines in log-log space, and power laws with a floor.

N is the size of a model in parameters, y what was measured of it, w the weight of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SIZES = 2
"""Different sizes that a line needs."""
LEAST_SIZES_OF_FLOOR = 4
"""Different sizes that a law with a floor needs: through three it goes exactly."""
EXPONENTS = np.geomspace(0.005, 4.0, 600)
"""Among which the exponent of a law with a floor is sought."""
GOLDEN_STEPS = 64
"""Each leaves 0.618 of the interval: in the end rounding is all that is left."""


@dataclass(frozen=True)
class Line:
    """log10 y = intercept + slope log10 N."""

    slope: float
    intercept: float
    slope_error: float | None
    """Standard error, from the scatter about the line; None with two points, which have none."""
    r_squared: float | None
    effective: float
    """Points as weights have it, (Σw)² / Σw²: near 1 where one run decides all."""

    def at(self, log_size: float | np.ndarray) -> float | np.ndarray:
        """log10 y at log10 N."""
        return self.intercept + self.slope * log_size


@dataclass(frozen=True)
class Saturating:
    """y = floor + amplitude N^-exponent, all of them >= 0."""

    floor: float
    amplitude: float
    exponent: float

    def at(self, size: np.ndarray) -> np.ndarray:
        return self.floor + self.amplitude * size**-self.exponent


def weights(means: np.ndarray, deviations: Sequence[float | None]) -> np.ndarray | None:
    """1/σ² of each run, their mean 1, with σ = deviation / (mean ln 10), the error of log10 y.

    None, which is equal weights, where a run has no deviation or one of zero.
    """
    if not all(deviations):  # None and 0 alike
        return None
    sigma = np.array(deviations, float) / (means * math.log(10))  # [n]
    weight = sigma**-2
    return weight / weight.mean() if np.isfinite(weight).all() else None


def lines(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and intercepts [...] of weighted least squares, for x, y [n] and weights [..., n].

    Where the weights leave fewer than two values of x, both are NaN.
    """
    total = weight.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_x, mean_y = weight @ x / total, weight @ y / total  # [...]
        from_x, from_y = x - mean_x[..., None], y - mean_y[..., None]  # [..., n]
        slope = (weight * from_x * from_y).sum(axis=-1) / (weight * from_x**2).sum(axis=-1)
        slope = np.where(_sizes(x, weight) >= LEAST_SIZES, slope, np.nan)
    return slope, mean_y - slope * mean_x


def _sizes(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """How many values of x have a weight, [...]."""
    held = np.unique(x)[:, None] == x  # [sizes, n]
    return ((weight @ held.T.astype(float)) > 0).sum(axis=-1)


def fit_line(size: np.ndarray, value: np.ndarray, weight: np.ndarray | None = None) -> Line | None:
    """The line through N, y [n] by weights [n]; None with fewer than two different sizes."""
    x, y = np.log10(size), np.log10(value)
    weight = np.ones_like(x) if weight is None else weight
    if len(np.unique(x)) < LEAST_SIZES:
        return None
    slope, intercept = (float(number) for number in lines(x, y, weight))
    rest = (weight * (y - intercept - slope * x) ** 2).sum()
    spread_x, spread_y = ((weight * (z - np.average(z, weights=weight)) ** 2).sum() for z in (x, y))
    freedom = len(x) - 2
    return Line(
        slope=slope,
        intercept=intercept,
        slope_error=math.sqrt(rest / freedom / spread_x) if freedom else None,
        r_squared=float(1 - rest / spread_y) if spread_y > 0 else None,
        effective=float(weight.sum() ** 2 / (weight**2).sum()),
    )


def fit_saturating(
    size: np.ndarray, value: np.ndarray, weight: np.ndarray | None = None
) -> Saturating | None:
    """The law with a floor through N, y [n]; None with fewer than three different sizes.

    It minimises Σ w (1 - (E + A N^-a) / y)², the power law's residual to first order: linear in E
    and A, so that only a is sought. With three sizes it is exact, and tells nothing.
    """
    if len(np.unique(size)) < LEAST_SIZES_OF_FLOOR - 1:
        return None
    weight = np.ones_like(value) if weight is None else weight
    middle = math.exp(np.log(size).mean())  # powers of N / middle are near 1

    def best(exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _floor_and_amplitude((size / middle) ** -exponents[:, None], value, weight)

    index = int(np.argmin(best(EXPONENTS)[2]))
    low, high = (math.log(EXPONENTS[min(max(index + i, 0), len(EXPONENTS) - 1)]) for i in (-1, 1))
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(GOLDEN_STEPS):
        inner = np.array([high - golden * (high - low), low + golden * (high - low)])
        left, right = best(np.exp(inner))[2]
        low, high = (low, inner[1]) if left < right else (inner[0], high)
    exponent = math.exp((low + high) / 2)
    floor, amplitude, _ = (float(part[0]) for part in best(np.array([exponent])))
    return Saturating(floor, amplitude * middle**exponent, exponent)


def _floor_and_amplitude(
    power: np.ndarray, value: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best E and A, both >= 0, and what is left, [G] each, for N^-a [G, n]."""
    p, q = 1 / value, power / value  # [n], [G, n]
    pp, pq, qq = (weight * p * p).sum(), q @ (weight * p), (q * q) @ weight
    p1, q1 = (weight * p).sum(), q @ weight
    with np.errstate(divide="ignore", invalid="ignore"):
        floor = (p1 * qq - q1 * pq) / (pp * qq - pq * pq)
    floor = np.clip(np.nan_to_num(floor, nan=0.0, posinf=0.0, neginf=0.0), 0.0, p1 / pp)
    amplitude = np.maximum((q1 - floor * pq) / qq, 0.0)
    left = 1 - floor[:, None] * p - amplitude[:, None] * q  # [G, n]
    return floor, amplitude, (left * left) @ weight
