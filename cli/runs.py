"""`mlx_pam runs`: the runs in a folder, and where each stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from mlx_pam.analysis.runs import RunSummary, list_runs
from mlx_pam.cli.arguments import parse
from mlx_pam.config import require
from mlx_pam.training.metrics import to_json

RUNS = Path("runs")
UNKNOWN = "–"
STYLES = {"running": "green", "diverged": "red", "crashed": "red", "unreadable": "red"}
COLUMNS = ("parameters", "step", "perplexity", "best", "tokens/s", "age")
UNITS = (("d", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True, kw_only=True)
class RunsConfig:
    """List the runs in a folder, the one that wrote last first.

    Perplexity is that of the last evaluation on the validation split, best the lowest so far.
    """

    folder: Positional[Path] = RUNS
    """Folder that holds run folders, at any depth, or is one."""
    json: bool = False
    """Print the list as JSON, times in seconds."""

    def __post_init__(self) -> None:
        there = self.folder == RUNS or self.folder.is_dir()
        require(there, "FOLDER", "a folder that exists", str(self.folder))


def run(argv: list[str]) -> int:
    config = parse(RunsConfig, argv, prog="mlx_pam runs", description=RunsConfig.__doc__ or "")
    runs = list_runs(config.folder)
    if config.json:
        print("[" + ",\n ".join(to_json(summary.to_dict()) for summary in runs) + "]")
    elif runs:
        _print_table(runs)
    else:
        print(f"there is no run in {config.folder}: `mlx_pam train` begins one")
    return 0


def _print_table(runs: list[RunSummary]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("run", "state", "model", "data"):
        table.add_column(name, overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for summary in runs:
        table.add_row(*_cells(summary))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000  # a file or a pipe has no edge
    console.print(table)


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
