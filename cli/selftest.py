"""`mlx_pam selftest`: every form of the memory on this machine, against an exact loop."""

from __future__ import annotations

import dataclasses
import inspect
import json

from rich import box
from rich.console import Console
from rich.table import Table

from mlx_pam.cli.arguments import parse
from mlx_pam.selftest import GRADIENTS, TOLERANCES, VALUES, Row, SelftestConfig, selftest


def run(argv: list[str]) -> int:
    description = inspect.getdoc(SelftestConfig) or ""
    config = parse(SelftestConfig, argv, prog="mlx_pam selftest", description=description)

    from mlx_pam.backend import get_backend  # heavy: help does without

    backend = get_backend(config.backend)
    if not config.json:
        print(backend.description, flush=True)
    rows = list(selftest(backend, config.dtype))
    passed = all(row.passed for row in rows)
    if config.json:
        record = {"backend": backend.description, "dtype": config.dtype, "passed": passed}
        print(json.dumps(record | {"rows": [dataclasses.asdict(row) for row in rows]}))
    else:
        _print_table(rows, config.dtype)
        print(
            "every form agrees with the loop" if passed else "FAILED: rows marked ! differ from it"
        )
    return 0 if passed else 1


def _print_table(rows: list[Row], dtype: str) -> None:
    of_value, of_gradient = TOLERANCES[dtype]
    table = Table(
        title=f"largest error against an exact loop, {dtype}",
        caption=f"tolerance {of_value:g} for values, {of_gradient:g} for gradients",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("form")
    table.add_column("numbers")
    for name in (*VALUES, *GRADIENTS):
        table.add_column(name, justify="right")
    for row in rows:
        form = row.form if row.passed else f"{row.form} !"
        table.add_row(form, row.numbers, *(f"{error:.0e}" for error in row.errors.values()))
    Console().print(table)
