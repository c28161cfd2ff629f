"""`mlx_pam bench`: what the operator and decoding take on this machine, beside a cost model."""

from __future__ import annotations

import inspect
import json

from rich.console import Console

from mlx_pam import durable
from mlx_pam.benchmarks.metal import BenchConfig
from mlx_pam.cli.arguments import parse
from mlx_pam.cli.outputs import require_output, write_output


def run(argv: list[str]) -> int:
    description = inspect.getdoc(BenchConfig) or ""
    config = parse(BenchConfig, argv, prog="mlx_pam bench", description=description)

    from mlx_pam.backend import get_backend  # heavy: help does without
    from mlx_pam.benchmarks import comparison, metal, report

    console = Console()
    if config.json:
        require_output("--json", config.json, make_folder=True)
    description = get_backend(config.backend).description
    console.print(description, highlight=False)
    with report.telling("bench", console) as tell:
        record = {"description": description, **metal.measure(config, tell)}
    comparison.show(record, console)
    if config.json:
        text = json.dumps(record, indent=1, default=str) + "\n"
        write_output("--json", config.json, lambda file: durable.write_bytes(file, text.encode()))
        console.print(f"the record is in {config.json}")
    return 0
