"""The record of `mlx_pam bench` as tables: what was measured, and beside it what the MODEL says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from mlx_pam.config import PRESETS

Row = Mapping[str, Any]
MILLISECONDS, MEGABYTE = 1e3, 1e6
PASSES = {False: "forward", True: "with gradients"}
LEGEND = "Medians; bold: the fastest. (MODEL), in brackets: a prediction, not a measurement."


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print all tables of a record, and what was left out and why."""
    rows = record["rows"]
    _show_rates(record, console)
    operator = [row for row in rows if row["part"] == "operator" and "seconds" in row]
    for (scale, dtype), group in itertools.groupby(operator, _scale_and_type):
        _print_whole(_operator(scale, dtype, list(group)), console)
    decode = [row for row in rows if row["part"] == "decode" and "seconds" in row]
    for scale, group in itertools.groupby(decode, lambda row: row["scale"]):
        _print_whole(_decoding(scale, list(group)), console)
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


def _model(row: Row) -> str:
    return row["model"] if row["form"] == "auto" else f"{row['model']} {row['form']}"


def _operator(scale: str, dtype: str, rows: list[Row]) -> Table:
    """A line for each window and pass, a column for each form."""
    heads = PRESETS["pam"][scale]
    title = f"operator, {heads.num_heads} heads of {heads.head_dim} ({scale}), {dtype}"
    forms = list(dict.fromkeys(_form(row) for row in rows))
    table = _table(title, "batch × T", "pass", *forms)
    by_line: dict[tuple[int, int, bool], dict[str, Row]] = {}
    for row in rows:
        line = by_line.setdefault((row["batch_size"], row["seq_len"], row["backward"]), {})
        line[_form(row)] = row
    for (batch, time, backward), line in by_line.items():
        table.add_row(f"{batch} × {time}", PASSES[backward], *_cells(line, forms))
    return table


def _decoding(scale: str, rows: list[Row]) -> Table:
    """A line for each context; time and state of each model."""
    models = list(dict.fromkeys(map(_model, rows)))
    states = [f"{model}, MB" for model in models]
    table = _table(f"a decoded token, {scale}, float32", "context", *models, *states)
    by_context: dict[int, dict[str, Row]] = {}
    for row in rows:
        by_context.setdefault(row["context"], {})[_model(row)] = row
    for context, line in by_context.items():
        sizes = (line[m]["state_bytes"] / MEGABYTE if m in line else None for m in models)
        held = ("-" if size is None else f"{size:,.2f}" for size in sizes)
        table.add_row(f"{context:,}", *_cells(line, models), *held)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"{title}: ms (MODEL)", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name == "pass" else "right", no_wrap=True)
    return table


def _print_whole(table: Table, console: Console) -> None:
    """A narrow terminal may wrap a line, but no figure is cut."""
    wide = console.options.update(max_width=1000)
    table.width = Measurement.get(console, wide, table).maximum
    console.print(table, crop=False)


def _cells(line: Mapping[str, Row], names: Iterable[str]) -> Iterator[str]:
    """Measured milliseconds, the least of the line bold, and in brackets those predicted."""
    best = min(row["seconds"] for row in line.values())
    for name in names:
        if name not in line:
            yield "-"
            continue
        measured, predicted = line[name]["seconds"], line[name]["model_seconds"]
        style = "bold" if measured == best else "none"
        beside = "" if predicted is None else f" [italic]({_milliseconds(predicted)})[/]"
        yield f"[{style}]{_milliseconds(measured)}[/]{beside}"


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
        words.append({"operator": _form, "decode": _model}.get(row["part"], _name)(row))
        names = reasons.setdefault(row["skipped"], [])
        if (name := " ".join(words)) not in names:
            names.append(name)
    return reasons
