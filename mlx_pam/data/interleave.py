"""The order of a mixture: which part gives each window, so that every stretch has the right shares.

Sainte-Lague's rule: the parts take turns in the order of (2 m + 1) / w, m the windows that a part
has given and w its weight, the first of equals first. After any n windows a part has given its
share n w / sum(w) to within 1/2 + k w / (2 sum(w)) windows, k the number of parts; after a multiple
of sum(w), exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class Interleave:
    """The turns of parts with whole weights; a pure function of the number of a window."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = weights
        self._total = sum(weights)
        common = math.lcm(*weights)
        self._slowness = [common // weight for weight in weights]  # a whole multiple of 1 / w

    def counts(self, number: int) -> list[int]:
        """How many of the first `number` windows each part gives."""
        # the turns whose time is over by `before` are never more than the windows asked for
        before = max(0, number - len(self.weights))
        counts = [(2 * w * before + self._total) // (2 * self._total) for w in self.weights]
        for _ in range(number - sum(counts)):
            self._turn(counts)
        return counts

    def turns(self, first: int, count: int) -> np.ndarray:
        """The part that gives each of `count` windows from number `first` on, `[count]`."""
        counts = self.counts(first)
        return np.array([self._turn(counts) for _ in range(count)], np.int64)

    def _turn(self, counts: list[int]) -> int:
        """Whose turn it is; counts it."""
        times = [(2 * m + 1) * slowness for m, slowness in zip(counts, self._slowness, strict=True)]
        part = times.index(min(times))
        counts[part] += 1
        return part
