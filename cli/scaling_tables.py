"""A study of scaling as tables and sentences on a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from mlx_pam.analysis.scaling.points import Point
from mlx_pam.analysis.scaling.resampling import Interval
from mlx_pam.analysis.scaling.study import QUANTITIES, Crossing, Fit, Study
from mlx_pam.analysis.scaling.words import amount, times
from mlx_pam.cli.tables import print_table

UNKNOWN = "–"
WORDS = ("family", "scale", "size", "families", "in")
WRAPPED = ("family", "families")
"""Columns that may take more than a line."""
LESSER = ("training loss", "weights", "there", "σ late", "by largest", "no emb.", "R²")
"""Columns that a narrow terminal goes without, in this order."""
SHORT = {"body": "no emb.", "perplexity": "ppl"}
"""Words that would make columns wide."""

Row = dict[str, str]


def print_tables(found: Study, sentences: Sequence[str]) -> None:
    """What was measured, the lines, where they meet, and what that is worth."""
    console = Console(highlight=False)
    for rows in (_measured(found), _lines(found), _crossings(found)):
        if rows:
            print_table(console, lambda without, rows=rows: _table(rows, without), LESSER)
    for sentence in sentences:
        console.print(f"- {sentence}", soft_wrap=not console.is_terminal, markup=False)


def _table(rows: Sequence[Row], without: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown = [name for name in rows[0] if name not in without]
    for name in shown:
        justify = "left" if name in WORDS else "right"
        table.add_column(name, justify=justify, no_wrap=name not in WRAPPED, overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _measured(found: Study) -> list[Row]:
    """A row for each family and scale, over its seeds."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in found.points:
        groups.setdefault((point.family, point.scale), []).append(point)
    rows = []
    for (family, scale), points in groups.items():
        losses = [point.loss.mean for point in points]
        late = [point.loss.deviation for point in points]
        training = [point.training_loss.mean for point in points if point.training_loss]
        variance = None if None in late else statistics.fmean(d * d for d in late)
        perplexity = statistics.fmean(point.perplexity.mean for point in points)
        rows.append(
            {
                "family": family,
                "scale": scale,
                "runs": str(len(points)),
                "total": amount(points[0].sizes["total"]),
                SHORT["body"]: amount(points[0].sizes["body"]),
                "loss": f"{statistics.fmean(losses):.3f}",
                "σ late": UNKNOWN if variance is None else f"{math.sqrt(variance):.2g}",
                "σ seeds": f"{statistics.stdev(losses):.2g}" if len(losses) > 1 else UNKNOWN,
                "perplexity": f"{perplexity:,.2f}",
                "training loss": f"{statistics.fmean(training):.3f}" if training else UNKNOWN,
            }
        )
    return rows


def _lines(found: Study) -> list[Row]:
    return [
        {"size": SHORT.get(size, size), "family": family, "in": SHORT.get(quantity, quantity)}
        | _line(found.fit(family, quantity, size))
        for size in found.sizes
        for family in found.families
        for quantity in QUANTITIES
    ]


def _line(fit: Fit) -> Row:
    line, bounds = fit.line, fit.slope_interval
    row = dict.fromkeys(("slope", "± error", "95 %", "R²", "weights"), UNKNOWN)
    if line is None:
        return row
    row |= {"slope": f"{line.slope:.4f}", "weights": "1/σ²" if fit.weighted else "equal"}
    if line.slope_error is not None:
        row["± error"] = f"{line.slope_error:.4f}"
    if line.r_squared is not None:
        row["R²"] = f"{line.r_squared:.3f}"
    if bounds is not None:
        row["95 %"] = f"{bounds.low:.3f} to {bounds.high:.3f}"
    return row


def _crossings(found: Study) -> list[Row]:
    return [
        {
            "size": SHORT.get(size, size),
            "families": ", ".join(crossing.families),
            "in": SHORT.get(quantity, quantity),
        }
        | _crossing(crossing)
        for size in found.sizes
        for quantity in QUANTITIES
        for crossing in found.crossings_of(quantity, size)
    ]


def _crossing(c: Crossing) -> Row:
    row = dict.fromkeys(("meet at", "there", "by largest", "95 %", "one left out"), UNKNOWN)
    if c.kind in ("parallel", "before"):
        return row | {"meet at": {"parallel": "parallel", "before": "behind"}[c.kind]}
    left_out = Interval(min(c.without.values()), max(c.without.values())) if c.without else None
    return {
        "meet at": amount(c.parameters),
        "there": f"{c.value:.3g}",
        "by largest": f"× {times(c.factor)}" if c.kind == "beyond" else "within",
        "95 %": _range(c.interval),
        "one left out": _range(left_out),
    }


def _range(bounds: Interval | None) -> str:
    return f"{amount(bounds.low)} to {amount(bounds.high)}" if bounds else UNKNOWN
