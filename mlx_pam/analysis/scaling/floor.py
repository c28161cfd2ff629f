"""Whether a law with a floor, L = E + A N^-a, says more of a family's losses than a power law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_pam.analysis.scaling.fits import (
    LEAST_SIZES_OF_FLOOR,
    Line,
    Saturating,
    fit_line,
    fit_saturating,
)
from mlx_pam.analysis.scaling.resampling import without_each

STEADY = 2.0
"""Ratio of the floors with one scale left out, up to which the floor is determined."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The law with a floor of one family's losses, beside its power law."""

    family: str
    size: str
    """How parameters are counted."""
    law: Saturating
    error: float
    """Root mean square of log10 (predicted / measured) of scales left out in turn."""
    line_error: float
    """The same of the power law."""
    without: Mapping[str, float]
    """The floor when one scale is left out."""
    determined: bool
    """Whether these floors, of four scales or more, are above zero and within a factor `STEADY`,
    and the law predicts scales left out better than the power law."""


def fit_floor(
    family: str,
    size: str,
    scales: Sequence[str],
    number: np.ndarray,
    loss: np.ndarray,
    weight: np.ndarray | None,
) -> Floor | None:
    """From parameters, losses and weights of runs, [n] each.

    None with fewer than four sizes, or scales to leave out.
    """
    different = min(len(np.unique(number)), len(set(scales)))
    if different < LEAST_SIZES_OF_FLOOR:
        return None

    def among(fit: Callable[..., Line | Saturating | None]) -> Callable[[np.ndarray], object]:
        return lambda kept: fit(number[kept], loss[kept], None if weight is None else weight[kept])

    laws, lines = (without_each(scales, among(fit)) for fit in (fit_saturating, fit_line))
    names = np.array(scales)

    def error(predicted: Mapping[str, Callable[[np.ndarray], np.ndarray]]) -> float:
        misses = [
            np.log10(loss[names == scale] / predict(number[names == scale]))
            for scale, predict in predicted.items()
        ]
        return float(np.sqrt(np.mean(np.concatenate(misses) ** 2)))

    floors = {scale: law.floor for scale, law in laws.items()}
    low, high = min(floors.values()), max(floors.values())
    law_error = error({scale: law.at for scale, law in laws.items()})
    line_error = error({scale: _power_law(line) for scale, line in lines.items()})
    return Floor(
        family=family,
        size=size,
        law=fit_saturating(number, loss, weight),
        error=law_error,
        line_error=line_error,
        without=floors,
        determined=different > LEAST_SIZES_OF_FLOOR
        and low > 0
        and high <= STEADY * low
        and law_error < line_error,
    )


def _power_law(line: Line) -> Callable[[np.ndarray], np.ndarray]:
    return lambda number: 10 ** line.at(np.log10(number))
