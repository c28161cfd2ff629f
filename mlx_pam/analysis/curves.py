"""A run's log as columns of numbers, and what it takes to draw them: bins and running means."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_pam.training.metrics import Record, records

WORDS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
"""JSON has no such numbers; the log writes them as words."""


@dataclass(frozen=True)
class Curves:
    """The numbers in a run's log: N records of an event are columns of N values."""

    tables: dict[str, dict[str, np.ndarray]]
    """event -> field -> values [N], float64, by rising step; NaN where a record lacks the field."""
    starts: tuple[int, ...]
    """The step after which each session began."""

    def column(self, event: str, field: str) -> np.ndarray:
        """Values [N] of a field; no value at all, [0], where no such record has it."""
        return self.tables.get(event, {}).get(field, np.empty(0))

    def along(self, event: str, x: str) -> np.ndarray | None:
        """What `x` was at each record of an event, [N]; between steps it is interpolated.

        None where the log does not tell.
        """
        known = self.tables.get(event, {})
        if x in known or "step" not in known:
            return known.get(x)
        steps, values = self.column("step", "step"), self.column("step", x)
        return np.interp(known["step"], steps, values) if len(values) else None


def read_curves(run: Path) -> Curves:
    """Read a run's log, whoever wrote it and whatever a crash left of it.

    What a later session, or a later record of the same step, takes back is left out.
    """
    tables: dict[str, _Table] = {}
    starts: list[int] = []
    for record in records(run):
        step = record.get("step")
        if type(step) is not int or not 0 <= step < 2**63:
            continue
        if record["event"] == "start":
            starts.append(step)
            for table in tables.values():
                table.cut(step + 1)
        else:
            tables.setdefault(record["event"], _Table()).add(step, record)
    found = {event: table.columns() for event, table in tables.items()}
    return Curves({event: columns for event, columns in found.items() if columns}, tuple(starts))


class _Table:
    """Columns that grow by a record; a field that some records lack is NaN in those."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._fields: dict[str, array[float]] = {}

    def add(self, step: int, record: Record) -> None:
        if self._steps and step <= self._steps[-1]:
            self.cut(step)
        self._steps.append(step)
        rows = len(self._steps)
        for name, entry in record.items():
            value = number(entry)
            if value is not None:
                column = self._fields.setdefault(name, array("d"))
                column.extend([np.nan] * (rows - 1 - len(column)))
                column.append(value)

    def cut(self, step: int) -> None:
        """Forget this step and those beyond it."""
        rows = bisect_left(self._steps, step)
        for column in (self._steps, *self._fields.values()):
            del column[rows:]

    def columns(self) -> dict[str, np.ndarray]:
        rows = len(self._steps)
        columns = {name: np.full(rows, np.nan) for name, column in self._fields.items() if column}
        for name, column in columns.items():
            column[: len(self._fields[name])] = self._fields[name]
        return columns if rows else {}


def number(value: Any) -> float | None:
    """A number of the log, or the word for one that JSON lacks; None for anything else."""
    if type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            return np.inf
    return WORDS.get(value) if isinstance(value, str) else None


@dataclass(frozen=True)
class Bins:
    """A curve in few points: of each bin the mean, the least and the most finite value, [K]."""

    x: np.ndarray
    mean: np.ndarray
    """NaN where a bin has no finite value."""
    least: np.ndarray
    most: np.ndarray
    count: np.ndarray
    """Finite values in each bin."""
    points: int
    """Points of the curve itself, N."""


def bin_curve(x: np.ndarray, y: np.ndarray, most_points: int = 1000) -> Bins:
    """A curve of N points, of more than twice `most_points`, as one point for each bin of x.

    x [N] rises; bins are of equal width, empty ones are left out. A shorter curve stays as it is.
    """
    finite = np.isfinite(y)
    if len(x) <= 2 * most_points:
        y = np.where(finite, y, np.nan)
        return Bins(x, y, y, y, finite.astype(int), len(x))
    edges = np.linspace(x[0], x[-1], most_points + 1)[1:-1]
    firsts = np.unique(np.concatenate([[0], np.searchsorted(x, edges)]))  # [K] first point of each
    firsts = firsts[firsts < len(x)]
    count = np.add.reduceat(finite.astype(int), firsts)  # [K]
    none = count == 0

    def reduce(ufunc: np.ufunc, neutral: float) -> np.ndarray:
        of_bins = ufunc.reduceat(np.where(finite, y, neutral), firsts)
        return np.where(none, np.nan, of_bins)

    sizes = np.diff(np.append(firsts, len(x)))
    return Bins(
        x=np.add.reduceat(x.astype(float), firsts) / sizes,
        mean=reduce(np.add, 0.0) / np.maximum(count, 1),
        least=reduce(np.minimum, np.inf),
        most=reduce(np.maximum, -np.inf),
        count=count,
        points=len(x),
    )


def running_mean(bins: Bins, width: float) -> np.ndarray:
    """Mean of the curve about each bin, [K]: weights exp(-(Δx / width)² / 2); NaN stays NaN."""
    distance = (bins.x[:, None] - bins.x[None, :]) / width  # [K, K]
    weight = np.exp(-0.5 * distance**2) * bins.count  # [K, K]
    total = weight @ np.nan_to_num(bins.mean)  # [K]
    with np.errstate(invalid="ignore"):
        return np.where(bins.count > 0, total / weight.sum(axis=1), np.nan)
