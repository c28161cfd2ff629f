"""`mlx_pam bench`: what the operator and decoding take on this machine, beside a cost model."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from rich.console import Console

from mlx_pam.benchmarks.metal import BenchConfig
from mlx_pam.cli.arguments import parse
from mlx_pam.errors import ConfigError


def run(argv: list[str]) -> int:
    description = inspect.getdoc(BenchConfig) or ""
    config = parse(BenchConfig, argv, prog="mlx_pam bench", description=description)

    from mlx_pam.backend import get_backend  # heavy: help does without
    from mlx_pam.benchmarks import comparison, metal, report

    console = Console()
    if config.json:
        _require_writable(config.json)
    description = get_backend(config.backend).description
    console.print(description, highlight=False)
    with report.telling("bench", console) as tell:
        record = {"description": description, **metal.measure(config, tell)}
    comparison.show(record, console)
    if config.json:
        config.json.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
        console.print(f"the record is in {config.json}")
    return 0


def _require_writable(path: Path) -> None:
    """Minutes of measurements must not end in a file that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
        raise ConfigError(f"--json must be a file to write to, got {path}: {reason}") from None
