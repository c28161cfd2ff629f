"""A row as a table for the eye, and how far the next one is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

MEGABYTE = 1e6
SCALED = {"FLOP/s": ("GFLOP/s", 1e9), "bytes/s": ("GB/s", 1e9)}


@contextlib.contextmanager
def telling(what: str, console: Console) -> Iterator[Callable[[str], None]]:
    """A function that tells how far it has come: a terminal in a line that changes, else stderr."""
    with console.status("") as status:

        def tell(text: str) -> None:
            status.update(f"{what}: {text}")
            if not console.is_terminal:
                print(f"{what}: {text}", file=sys.stderr)

        yield tell


def show(row: Mapping[str, Any], console: Console) -> None:
    """Print the variants and the ratios of one row."""
    setting = ", ".join(f"{name} {value}" for name, value in row["setting"].items())
    minutes = row["wall_seconds"] / 60
    title = f"{row['case']}: {setting} ({row['rounds']} rounds, {minutes:.1f} min)"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("variant", "median", "min - max", "unit", "peak", "notes"):
        table.add_column(name, justify="left" if name in ("variant", "unit", "notes") else "right")
    for name, measured in row["variants"].items():
        table.add_row(name, *_cells(measured))
    console.print(table)
    for name, ratio in row["ratios"].items():
        if "withheld" in ratio:
            console.print(f"  {name}: no ratio, {ratio['withheld']}", highlight=False)
            continue
        by_operations = ratio.get("by_operations")
        alone = f", by operations alone {by_operations:.2f}" if by_operations else ""
        low, high = ratio["min"], ratio["max"]
        console.print(f"  {name}: [bold]{ratio['median']:.3g}[/] ({low:.3g} - {high:.3g}){alone}")
    console.print()


def _cells(measured: Mapping[str, Any]) -> tuple[str, ...]:
    if "skipped" in measured:
        return "-", "", "", "", f"skipped: {measured['skipped']}"
    unit, divisor = SCALED.get(measured["unit"], (measured["unit"], 1.0))
    median, low, high = (f"{measured[key] / divisor:.4g}" for key in ("median", "min", "max"))
    peak = f"{measured['peak_bytes'] / MEGABYTE:,.0f} MB"
    return median, f"{low} - {high}", unit, peak, "; ".join(_notes(measured))


def _notes(measured: Mapping[str, Any]) -> list[str]:
    notes = []
    if "bytes_per_token" in measured:
        notes.append(f"{1000 / measured['median']:.1f} ms a token")
        notes.append(f"state {measured['state_bytes'] / MEGABYTE:,.2f} MB")
    if "first_loss" in measured:
        notes.append(f"loss {measured['first_loss']:.4f}")
    for key, text in (("share_of_product", "a large product's rate"),
                      ("share_of_bandwidth", "the bandwidth")):  # fmt: skip
        if key in measured:
            notes.append(f"{measured[key]:.0%} of {text}")
    return notes
