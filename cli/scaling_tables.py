"""A study of scaling as tables and sentences on a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from mlx_pam.analysis.scaling import QUANTITIES, Crossing, Fit, Study
from mlx_pam.analysis.scaling_points import Point
from mlx_pam.analysis.scaling_resampling import Interval
from mlx_pam.analysis.scaling_words import amount, times

UNKNOWN = "–"
WORDS = ("family", "scale", "size", "of", "families", "in")
COUNTED = {"nominal": "nominal", "total": "total", "body": "no embedding"}


def print_tables(found: Study, sentences: Sequence[str]) -> None:
    """What was measured, the lines, where they meet, and what that is worth."""
    console = Console(highlight=False)
    tables = [_measured(found), _lines(found)]
    if found.crossings:
        tables.append(_crossings(found))
    if not console.is_terminal:
        endless = console.options.update(width=10_000)  # a file or a pipe has no edge
        needed = max(console.measure(table, options=endless).maximum for table in tables)
        console.width = max(100, needed)
    for table in tables:
        console.print(table)
    for sentence in sentences:
        console.print(f"- {sentence}", soft_wrap=not console.is_terminal, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in columns:
        table.add_column(name, justify="left" if name in WORDS else "right", overflow="fold")
    return table


def _measured(found: Study) -> Table:
    """A row for each family and scale, over its seeds."""
    table = _table(
        "family", "scale", "runs", "parameters", "no embedding", "loss", "late sd", "seeds sd",
        "perplexity", "training loss",
    )  # fmt: skip
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in found.points:
        groups.setdefault((point.family, point.scale), []).append(point)
    for (family, scale), points in groups.items():
        losses = [point.loss.mean for point in points]
        late = [point.loss.deviation for point in points]
        training = [point.training_loss.mean for point in points if point.training_loss]
        table.add_row(
            family,
            scale,
            str(len(points)),
            f"{points[0].sizes['total']:,}",
            f"{points[0].sizes['body']:,}",
            f"{statistics.fmean(losses):.3f}",
            UNKNOWN if None in late else f"{math.sqrt(statistics.fmean(d * d for d in late)):.2g}",
            f"{statistics.stdev(losses):.2g}" if len(losses) > 1 else UNKNOWN,
            f"{statistics.fmean(point.perplexity.mean for point in points):,.2f}",
            f"{statistics.fmean(training):.3f}" if training else UNKNOWN,
        )
    return table


def _lines(found: Study) -> Table:
    table = _table("size", "family", "in", "slope", "± error", "95 %", "R²", "weights")
    for size in found.sizes:
        for family in found.families:
            for quantity in QUANTITIES:
                fit = found.fit(family, quantity, size)
                table.add_row(COUNTED[size], family, quantity, *_line(fit))
    return table


def _line(fit: Fit) -> list[str]:
    if fit.line is None:
        return [UNKNOWN] * 5
    line, bounds = fit.line, fit.slope_interval
    return [
        f"{line.slope:.4f}",
        UNKNOWN if line.slope_error is None else f"{line.slope_error:.4f}",
        f"{bounds.low:.4f} to {bounds.high:.4f}" if bounds else UNKNOWN,
        UNKNOWN if line.r_squared is None else f"{line.r_squared:.3f}",
        "1/σ²" if fit.weighted else "equal",
    ]


def _crossings(found: Study) -> Table:
    table = _table(
        "size", "families", "in", "meet at", "there", "by largest", "95 %", "one scale left out"
    )
    for size in found.sizes:
        for quantity in QUANTITIES:
            for crossing in found.crossings_of(quantity, size):
                names = ", ".join(crossing.families)
                table.add_row(COUNTED[size], names, quantity, *_crossing(crossing))
    return table


def _crossing(c: Crossing) -> list[str]:
    if c.kind in ("parallel", "before"):
        where = {"parallel": "parallel", "before": "none to the right"}[c.kind]
        return [where, *[UNKNOWN] * 4]
    left_out = Interval(min(c.without.values()), max(c.without.values())) if c.without else None
    return [
        amount(c.parameters),
        f"{c.value:.3g}",
        f"× {times(c.factor)}" if c.kind == "beyond" else "within",
        _range(c.interval),
        _range(left_out),
    ]


def _range(bounds: Interval | None) -> str:
    return f"{amount(bounds.low)} to {amount(bounds.high)}" if bounds else UNKNOWN
