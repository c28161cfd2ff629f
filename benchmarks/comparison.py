"""The record of `mlx_pam bench` as tables: what was measured, and beside it what the MODEL says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mlx_pam.config import PRESETS

Row = Mapping[str, Any]
MILLISECONDS, MEGABYTE = 1e3, 1e6
PASSES = {False: "forward", True: "with gradients"}
LEGEND = "Medians in ms; bold: the fastest. MODEL, italic: a prediction, not a measurement."


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print all tables of a record, and what was left out and why."""
    rows = record["rows"]
    _show_rates(record, console)
    operator = [row for row in rows if row["part"] == "operator" and "seconds" in row]
    for (scale, dtype), group in itertools.groupby(operator, _scale_and_type):
        console.print(_operator(scale, dtype, list(group)))
    decode = [row for row in rows if row["part"] == "decode" and "seconds" in row]
    for scale, group in itertools.groupby(decode, lambda row: row["scale"]):
        console.print(_decoding(scale, list(group)))
    console.print(LEGEND, highlight=False, soft_wrap=True)
    for reason, names in _left_out(rows).items():
        console.print(f"left out: {', '.join(names)}: {reason}", highlight=False, soft_wrap=True)


def _show_rates(record: Mapping[str, Any], console: Console) -> None:
    machine, cores = record["machine"], record["gpu_cores"]
    cores = f", {cores} GPU cores" if cores else ""
    lines = [f"{machine['cpu']}{cores}, {machine['memory_bytes'] / 2**30:.0f} GiB"]
    found = {_name(row): row["median"] for row in record["rows"] if _is_probe(row)}
    lines.append("measured: " + ", ".join(_rate(*item) for item in found.items()))
    for dtype, rates in record["MODEL"]["rates"].items():
        of = {f"product {dtype}": rates["product"], "copy": rates["bandwidth"]}
        of["chain"] = 1 / rates["kernel_seconds"]
        lines.append(f"MODEL, {rates['name']}: " + ", ".join(_rate(*item) for item in of.items()))
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _is_probe(row: Row) -> bool:
    return row["part"] in ("product", "copy", "chain") and "median" in row


def _rate(name: str, rate: float) -> str:
    if name == "chain":
        return f"{1e6 / rate:.1f} us a kernel"
    unit = "GB/s" if name == "copy" else "GFLOP/s"
    return f"{name} {rate / 1e9:,.0f} {unit}"


def _name(row: Row) -> str:
    return " ".join(str(row[key]) for key in ("part", "dtype") if key in row)


def _scale_and_type(row: Row) -> tuple[str, str]:
    return row["scale"], row["dtype"]


def _form(row: Row) -> str:
    tiles = [f"C {row['CHUNK']}"] if "CHUNK" in row else []
    return " ".join([row["form"], *tiles])


def _operator(scale: str, dtype: str, rows: list[Row]) -> Table:
    """A line for each window and pass, two columns for each form."""
    heads = PRESETS["pam"][scale]
    title = f"operator, {heads.num_heads} heads of {heads.head_dim} ({scale}), {dtype}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    forms = list(dict.fromkeys(_form(row) for row in rows))
    for name in ("T", "batch"):
        table.add_column(name, justify="right")
    table.add_column("pass")
    for form in forms:
        table.add_column(form, justify="right")
        table.add_column("MODEL", justify="right", style="italic")
    by_line: dict[tuple[int, int, bool], dict[str, Row]] = {}
    for row in rows:
        line = by_line.setdefault((row["seq_len"], row["batch_size"], row["backward"]), {})
        line[_form(row)] = row
    for (time, batch, backward), line in by_line.items():
        best = min(row["seconds"] for row in line.values())
        cells = [cell for form in forms for cell in _pair(line.get(form), best)]
        table.add_row(str(time), str(batch), PASSES[backward], *cells)
    return table


def _decoding(scale: str, rows: list[Row]) -> Table:
    """A line for each context, and for each model time, prediction and state."""
    title = f"a decoded token, {scale}, float32"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    models = list(dict.fromkeys(row["model"] for row in rows))
    table.add_column("context", justify="right")
    for model in models:
        table.add_column(model, justify="right")
        table.add_column("MODEL", justify="right", style="italic")
        table.add_column("state, MB", justify="right")
    by_context: dict[int, dict[str, Row]] = {}
    for row in rows:
        by_context.setdefault(row["context"], {})[row["model"]] = row
    for context, line in by_context.items():
        best = min(row["seconds"] for row in line.values())
        cells = []
        for model in models:
            row = line.get(model)
            cells += _pair(row, best)
            cells.append(f"{row['state_bytes'] / MEGABYTE:,.2f}" if row else "")
        table.add_row(f"{context:,}", *cells)
    return table


def _pair(row: Row | None, best: float) -> tuple[str, str]:
    """Measured and predicted milliseconds."""
    if row is None:
        return "-", ""
    measured = _milliseconds(row["seconds"])
    predicted = row["model_seconds"]
    return (
        f"[bold]{measured}[/]" if row["seconds"] == best else measured,
        "" if predicted is None else _milliseconds(predicted),
    )


def _milliseconds(seconds: float) -> str:
    value = MILLISECONDS * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _left_out(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Reasons, and for each the rows that it kept from running, in few words."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if "skipped" not in row:
            continue
        words = [row["scale"]] if "scale" in row else []
        words.append(_form(row) if row["part"] == "operator" else row.get("model", _name(row)))
        names = reasons.setdefault(row["skipped"], [])
        if (name := " ".join(words)) not in names:
            names.append(name)
    return reasons
