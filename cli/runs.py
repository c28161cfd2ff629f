"""`mlx_pam runs`: the runs in a folder, and where each stands."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from mlx_pam.analysis.runs import RunSummary, list_runs
from mlx_pam.cli.arguments import parse
from mlx_pam.cli.tables import print_table
from mlx_pam.config import require
from mlx_pam.training.metrics import to_json

RUNS = Path("runs")
UNKNOWN = "–"
STYLES = {"running": "green", "diverged": "red", "crashed": "red", "unreadable": "red"}
WORDS = ("run", "state", "model", "data")
FIGURES = ("parameters", "step", "perplexity", "best", "tokens/s", "age")
LESSER = ("parameters", "data", "tokens/s", "model", "age")
"""Columns that a narrow terminal goes without, in this order."""
UNITS = (("d", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True, kw_only=True)
class RunsConfig:
    """List the runs in a folder, the one that wrote last first.

    Perplexity is that of the last evaluation on the validation split, best the lowest so far.
    """

    folder: Annotated[Positional[Path], arg(metavar="[FOLDER]")] = RUNS
    """Folder that holds run folders, at any depth, or is one."""
    json: bool = False
    """Print the list as JSON, times in seconds."""

    def __post_init__(self) -> None:
        there = self.folder == RUNS or self.folder.is_dir()
        require(there, "FOLDER", "a folder that exists", str(self.folder))


def run(argv: list[str]) -> int:
    description = inspect.getdoc(RunsConfig) or ""
    config = parse(RunsConfig, argv, prog="mlx_pam runs", description=description)
    runs = list_runs(config.folder)
    if config.json:
        print("[" + ",\n ".join(to_json(summary.to_dict()) for summary in runs) + "]")
    elif runs:
        print_table(Console(highlight=False), lambda without: _table(runs, without), LESSER)
    else:
        print(f"there is no run in {config.folder}: `mlx_pam train` begins one")
    return 0


def _table(runs: list[RunSummary], without: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    shown = [name not in without for name in (*WORDS, *FIGURES)]
    for name in itertools.compress((*WORDS, *FIGURES), shown):
        table.add_column(name, justify="right" if name in FIGURES else "left", overflow="fold")
    for summary in runs:
        table.add_row(*itertools.compress(_cells(summary), shown))
    return table


def _cells(run: RunSummary) -> list[str | Text]:
    """A row; figures are shown with the digits that matter."""
    steps = UNKNOWN if run.steps is None else f"{run.steps:,}"
    return [
        Text(run.name),
        Text(run.state, STYLES.get(run.state, "")),
        Text(" ".join(word for word in (run.model, run.scale) if word) or UNKNOWN),
        Text(run.data or UNKNOWN),
        _figure(run.parameters),
        UNKNOWN if run.step is None else f"{run.step:,}/{steps}",
        _figure(run.validation_perplexity, 2),
        _figure(run.best_validation_perplexity, 2),
        _figure(run.tokens_per_s),
        UNKNOWN if run.age is None else _duration(run.age),
    ]


def _figure(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _duration(seconds: float) -> str:
    """In the largest unit of which there is one."""
    for unit, size in UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
