"""How far up and down the axes of a panel have to reach."""

from __future__ import annotations

import numpy as np

SPREAD, DECADES = 10.0, 1e4
"""Ratio of peaks from which on they are far apart, and the most that their axis holds."""


class Extent:
    """Of the curves in a panel, the descents at their beginnings set apart."""

    def __init__(self) -> None:
        self.peaks: list[float] = []
        """The highest of each curve."""
        self.first = -np.inf
        """The highest of the descents."""
        self._lows: list[float] = []
        self._lows_above_zero: list[float] = []

    def add(self, least: np.ndarray, most: np.ndarray, late: np.ndarray) -> None:
        """Take in a curve, [K] each; `late` is what lies behind the descent."""
        known = np.isfinite(least) & np.isfinite(most)
        late = known & late if (known & late).any() else known
        if known.any():
            self.peaks.append(most[late].max())
            self.first = max(self.first, most[known & ~late].max(initial=-np.inf))
            self._lows.append(least[late].min())
            self._lows_above_zero.append(least[late & (least > 0)].min(initial=np.inf))

    def spread(self) -> float:
        """The highest peak by the lowest."""
        return max(self.peaks) / min(self.peaks) if min(self.peaks) > 0 else 1.0

    def limits(self, log: bool, from_zero: bool) -> tuple[float, float]:
        """Of an axis; a logarithmic one that should begin at zero holds `DECADES` at most."""
        low, high = min(self._lows), max(self.peaks)
        if log:
            low = min(self._lows_above_zero)
            low = max(low, high / DECADES) if from_zero else low
            margin = (high / low) ** 0.06 if high > low else 2.0
            return low / margin, high * margin
        low = min(low, 0.0) if from_zero else low
        margin = 0.07 * (high - low) or 0.07 * abs(high) or 1.0
        return low if from_zero else low - margin, high + margin
