"""`mlx_pam sweep`: train models of several families and scales, one run after the other."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mlx_pam.cli import EXIT_ERROR, EXIT_INTERRUPT
from mlx_pam.cli.arguments import parse
from mlx_pam.cli.tables import print_table
from mlx_pam.config import SweepConfig
from mlx_pam.evaluate import perplexity
from mlx_pam.training.metrics import to_json
from mlx_pam.training.progress import Lines, duration, open_console, say
from mlx_pam.training.sweep.run import Run, seconds_left
from mlx_pam.training.sweep.sweep import SweepResult, plan, sweep

SECONDS_BETWEEN_TABLES = 1.0
UNKNOWN = "–"
STYLES = {"running": "green", "failed": "red", "left out": "red", "interrupted": "yellow"}


def run(argv: list[str]) -> int:
    description = inspect.getdoc(SweepConfig) or ""
    config = parse(SweepConfig, argv, prog="mlx_pam sweep", description=description)
    console = open_console(stderr=config.json, quiet=False)
    say(console, _heading(config))
    if config.dry_run:
        result = SweepResult(status="dry run", config=config, searched=[], runs=plan(config))
        print_table(console, lambda _: _plan_table(result.runs))
    else:
        kind = LiveSweep if console.is_terminal else PlainSweep
        with kind(console, config.jobs) as show:
            result = sweep(config, show)
        _tell(console, result)
    if config.json:
        print(to_json(result.to_dict()))
    return {"failed": EXIT_ERROR, "interrupted": EXIT_INTERRUPT}.get(result.status, 0)


class PlainSweep(Lines):
    """A line for each event, for a file or a pipe."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(console)
        self._jobs = jobs
        self._queue: Sequence[Run] = ()

    def begun(self, run: Run) -> None:
        goes_on = f" goes on after step {run.step:,}" if run.step else ""
        self.say(f"begun     {run.name}{goes_on} · learning rate {run.lr:g}")

    def ended(self, run: Run) -> None:
        words = [f"{run.state:<9} {run.name}"]
        if run.error:
            words.append(run.error)
        elif run.validation_loss is not None:
            words.append(f"step {run.step:,} · validation perplexity {_perplexity(run)}")
        self.say(" · ".join(words))

    def renew(self, queue: Sequence[Run]) -> None:
        self._queue = queue


class LiveSweep(PlainSweep):
    """A table that is renewed, with the time left below it."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(console, jobs)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._next = 0.0

    def __enter__(self) -> LiveSweep:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.update(_progress_table(self._queue))
        self._live.stop()

    def begun(self, run: Run) -> None:
        pass

    def ended(self, run: Run) -> None:
        pass

    def renew(self, queue: Sequence[Run]) -> None:
        super().renew(queue)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_TABLES
        table = _progress_table(queue, rows=self._live.console.height - 6)
        self._live.update(Group(table, Text(_time_left(queue, self._jobs))), refresh=True)


def _heading(config: SweepConfig) -> str:
    runs = list(config.runs())
    steps, step = _counted(config.steps, "step"), _counted(config.tokens_per_step, "token")
    each = _counted(config.steps * config.tokens_per_step, "token")
    lines = [f"{_counted(len(runs), 'run')} of {steps} of {step}: {each} each, in {config.out}"]
    if config.left_out:
        lines.append(f"left out, as there is no such model: {', '.join(config.left_out)}")
    if config.search is not None:
        steps = _counted(config.search_steps, "step")
        each = _counted(config.search_steps * config.tokens_per_step, "token")
        trials = _counted(len(config.search_rates), "run")
        models = _counted(len({(run.model, run.scale) for run in runs}), "model")
        lines.append(
            f"before them a search for the learning rates of {models}: for each {trials} of "
            f"{steps}, {each}, or more"
        )
    return "\n".join(lines)


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _plan_table(runs: Sequence[Run]) -> Table:
    names = {"run": "left", "state": "left", "parameters": "right", "steps": "right",
             "tokens": "right", "learning rate": "right", "from": "left"}  # fmt: skip
    table = _table(names)
    for run in runs:
        rate = UNKNOWN if run.lr is None else f"{run.lr:g}"
        tokens = run.steps * run.config.tokens_per_step
        table.add_row(
            run.name, run.state, f"{run.parameters:,}", f"{run.steps:,}", f"{tokens:,}", rate,
            run.lr_origin,
        )  # fmt: skip
    return table


def _progress_table(queue: Sequence[Run], rows: int | None = None) -> Table:
    names = {"run": "left", "state": "left", "step": "right", "loss": "right",
             "validation perplexity": "right", "tokens/s": "right", "left": "right"}  # fmt: skip
    table = _table(names)
    for run in _in_view(queue, rows):
        left = seconds_left([run], 1) if run.state == "running" else None
        table.add_row(
            run.name,
            Text(run.state, STYLES.get(run.state, "")),
            f"{run.step:,}/{run.steps:,}",
            UNKNOWN if run.loss is None else f"{run.loss:.4f}",
            _perplexity(run),
            UNKNOWN if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f}",
            UNKNOWN if left is None else duration(left),
        )
    return table


def _in_view(queue: Sequence[Run], rows: int | None) -> Sequence[Run]:
    """As many runs as there are rows, from a little above the first that is not done."""
    if rows is None or len(queue) <= rows:
        return queue
    rows = max(rows, 1)
    ahead = (at for at, run in enumerate(queue) if run.state in ("waiting", "running"))
    first = max(0, min(next(ahead, 0) - rows // 4, len(queue) - rows))
    return queue[first : first + rows]


def _table(columns: dict[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name, justify in columns.items():
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _time_left(queue: Sequence[Run], jobs: int) -> str:
    seconds = seconds_left(list(queue), jobs)
    done = sum(run.state == "finished" for run in queue)
    left = (
        "time left is known after the first steps"
        if seconds is None
        else (f"about {duration(seconds)} left")
    )
    return f"{done} of {len(queue)} runs finished · {left}"


def _perplexity(run: Run) -> str:
    loss = run.validation_loss
    return UNKNOWN if loss is None else f"{perplexity(loss):,.2f}"


def _tell(console: Console, result: SweepResult) -> None:
    """How a sweep ended: what failed, why, and how to go on."""
    runs = [*result.searched, *result.runs]
    done = sum(run.state == "finished" for run in result.runs)
    say(console, f"{result.status}: {done} of {len(result.runs)} runs are finished")
    for run in runs:
        if run.state in ("failed", "left out"):
            where = f" ({run.output})" if run.state == "failed" else ""
            say(console, f"{run.state}  {run.name}: {run.error}{where}")
    if result.status != "finished":
        say(console, "the same command goes on where this one stopped")
