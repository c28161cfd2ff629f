"""A whole sweep: its folder, its queue, the search for learning rates where one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlx_pam import durable
from mlx_pam.config import SweepConfig, require
from mlx_pam.config.rates import PeakRate, rate_from
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.training.interrupt import Interrupt
from mlx_pam.training.lock import RunLock
from mlx_pam.training.sweep import record
from mlx_pam.training.sweep.children import QUIET, Children, Show
from mlx_pam.training.sweep.run import Run
from mlx_pam.training.sweep.search import MOST_EXTENSIONS, Search

RATES = "learning_rates.json"


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """How a sweep ended."""

    status: Literal["finished", "failed", "interrupted", "dry run"]
    config: SweepConfig
    searched: list[Run]
    """The runs of the search."""
    runs: list[Run]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON can hold it."""
        config = self.config
        return {
            "status": self.status,
            "out": str(config.out),
            "steps": config.steps,
            "tokens": config.steps * config.tokens_per_step,
            "learning_rates": str(config.out / RATES) if config.search else None,
            "search": [run.to_dict() for run in self.searched],
            "runs": [run.to_dict() for run in self.runs],
        }


def plan(config: SweepConfig) -> list[Run]:
    """The queue, each run as far as it is; the learning rate is open where it is yet to be found.

    Raises `ConfigError` where the folder was begun with other settings, or holds a run of that name
    which no sweep has begun.
    """
    _require_folder(config.out)
    found = record.read(config)
    planned = found.runs if found else {}
    runs = []
    for settings in config.runs():
        run = Run(settings)
        if run.begun and run.name not in planned:
            raise ConfigError(
                f"out must be the folder of a sweep, or a new one, got {config.out}, whose "
                f"{run.name} is a run that {record.RECORD} does not tell of: move it, or give "
                "another --out"
            )
        if config.search is None:
            recipe = settings.resolved_recipe(config.steps)
            then = planned.get(run.name, {"lr": recipe.peak_lr, "lr_origin": recipe.lr_origin})
            if config.rates and then["lr"] != recipe.peak_lr:
                raise ConfigError(
                    f"rates must hold {then['lr']:g} for {run.name}, with which it was begun, got "
                    f"{recipe.peak_lr:g}: put that back, or give another --out"
                )
            run.set_rate(then["lr"], then["lr_origin"])
        elif rate := _searched(config, settings.model, settings.scale):
            run.set_rate(rate.value, rate.origin)
        run.catch_up()
        runs.append(run)
    return runs


def sweep(config: SweepConfig, show: Show = QUIET) -> SweepResult:
    """Bring all runs of a sweep to their ends, after the search for their learning rates.

    What can be put right is an `MlxPamError`; a run that fails is no error, its `state` says so.
    """
    with RunLock(config.out) as lock:
        lock.take()
        runs = plan(config)
        _write_record(config, runs)
        if lock.note:
            show.say(lock.note)
        with Interrupt() as interrupt:
            children = Children(config.jobs, interrupt, show)
            searches = _search(config, runs, children)
            if not interrupt.requested:
                _write_record(config, runs)
                children.work(runs, [*_trials(searches), *runs])
    states = {run.state for run in runs}
    status = "finished" if states == {"finished"} else "failed"
    if interrupt.requested and status == "failed":
        status = "interrupted"
    return SweepResult(status=status, config=config, searched=_trials(searches), runs=runs)


def _require_folder(out: Path) -> None:
    """It is a folder or can be made: the first that is there on the way up to the root is one."""
    try:
        there = next(path for path in (out, *out.parents) if path.exists())
        require(there.is_dir(), "out", "a folder, or the name of a new one in a folder", str(out))
    except OSError as error:
        raise ConfigError(
            f"out must be a folder that can be read, got {out}: {error.strerror}"
        ) from error


def _search(config: SweepConfig, runs: list[Run], children: Children) -> list[Search]:
    """Find all rates that are open, in rounds: the grids first, then what extends them."""
    models = dict.fromkeys((run.config.model, run.config.scale) for run in runs if run.lr is None)
    searches = [Search.begin(config, *model) for model in models]
    pending = searches
    for extensions in range(MOST_EXTENSIONS + 1):
        children.work([*_trials(pending)], [*_trials(searches), *runs])
        if children.interrupt.requested:
            return searches
        if extensions < MOST_EXTENSIONS:
            pending = [search for search in pending if search.extend(config)]
    for search in searches:
        if search.error is None:
            _add_rate(config, search)
            children.show.say(search.describe())
        for run in runs:
            if (run.config.model, run.config.scale) != (search.model, search.scale):
                continue
            if search.error is None:
                run.set_rate(search.best, _searched(config, search.model, search.scale).origin)
            else:
                run.state, run.error = "left out", f"no learning rate was found: {search.error}"
    return searches


def _trials(searches: Sequence[Search]) -> list[Run]:
    return [trial for search in searches for trial in search.trials]


def _searched(config: SweepConfig, model: str, scale: str) -> PeakRate | None:
    """The rate that a search of this folder has found."""
    path = config.out / RATES
    try:
        entries = durable.read_json(path).get(model, {}) if path.exists() else {}
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    require(isinstance(entries, dict), model, f"an object of rates by scale in {path}", entries)
    return rate_from(path, model, scale) if scale in entries else None


def _add_rate(config: SweepConfig, search: Search) -> None:
    """Record what a search has found, for the runs and for `mlx_pam train --rates`."""
    path = config.out / RATES
    table = durable.read_json(path) if path.exists() else {}
    table.setdefault(search.model, {})[search.scale] = search.entry(config)
    record.save(path, table)
    search.discard_checkpoints()


def _write_record(config: SweepConfig, runs: list[Run]) -> None:
    figures = ("name", "model", "variant", "scale", "seed", "parameters", "lr", "lr_origin")
    rows = [{name: run.to_dict()[name] for name in figures} for run in runs]
    record.write(config, rows)
