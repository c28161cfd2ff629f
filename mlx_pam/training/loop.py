"""A whole run: its folder, its plan and where it begins, then its steps."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from mlx_pam import checkpoint, processes
from mlx_pam.backend import Backend, get_backend
from mlx_pam.config import ModelConfig, TrainConfig
from mlx_pam.footprint import require_room
from mlx_pam.training.lock import RunLock
from mlx_pam.training.plan import Plan, make_plan
from mlx_pam.training.progress import duration, open_console, say
from mlx_pam.training.resume import changes, load_start, rate_change, set_aside, starting_point
from mlx_pam.training.session import Session, TrainResult
from mlx_pam.training.trackers import require_trackers
from mlx_pam.training.trainer import Trainer


def train(config: TrainConfig, model_config: ModelConfig | None = None) -> TrainResult:
    """Train a model as `config` says; `model_config` stands in for the preset of its scale.

    Raises `ConfigError`, `DataError`, `BackendError`, `CheckpointError` or `RunError` before
    anything is written, `RunError` too when the run folder cannot be written to any longer, and
    `Diverged` when a loss or a gradient is not finite.
    """
    require_trackers(config.track)
    console = open_console(stderr=config.json, quiet=not processes.is_main())
    backend = get_backend(config.backend, config.parallel)
    with RunLock(config.run_folder) as lock:
        newest = None if config.dry_run else backend.team.on_main(lambda: _begin(config, lock))
        plan = backend.team.main_first(lambda: make_plan(config, model_config))
        say(console, plan.describe(backend.description))
        room = backend.memory_bytes()
        needed = require_room(
            plan.model, config, backend.name, backend.device, room, processes.count()
        )
        each = " in each process" if processes.count() > 1 else ""
        say(
            console,
            f"memory   about {decimal(needed.total)}{each} at the peak, as estimated "
            f"({decimal(room)} here)",
        )
        if config.dry_run:
            say(console, "time     is measured when the run starts; this is a dry run")
            return TrainResult(
                status="dry run", out=config.run_folder, step=0, tokens=0, plan=plan.record()
            )
        plan.require_disk()
        backend.limit_memory(round(config.memory_limit * 1e9) if config.memory_limit else room)
        if lock.note:
            say(console, lock.note)
        return Session(_trainer(plan, backend, newest, console), console).run()


def _begin(config: TrainConfig, lock: RunLock) -> Path | None:
    """Have the run folder for this run alone; the checkpoint to resume from, if any."""
    lock.take()
    checkpoint.sweep(config.run_folder)
    return starting_point(config)


def _trainer(plan: Plan, backend: Backend, newest: Path | None, console: Console) -> Trainer:
    """The trainer where the run begins or goes on, which is said, with the time it will take."""
    config = plan.config
    if config.overwrite:
        aside = backend.team.on_main(lambda: set_aside(config.run_folder))
        if aside:
            say(console, f"note: the run that was in {config.run_folder} is now in {aside}")
    start = load_start(newest, plan) if newest else None
    trainer = Trainer(plan, backend, start)
    if start is not None:
        say(console, f"resumed  {start.path}: step {trainer.step:,}, {trainer.tokens:,} tokens")
        for name, (then, now) in changes(start, config, backend.name).items():
            say(console, f"note: {name} was {then}, and is {now} from here on")
        if jump := rate_change(start, plan):
            say(console, f"note: {jump}")
        del start  # its arrays are the learner's now
    elif config.resume:
        say(console, "resumed  nothing was saved yet: the run starts at step 0")
    left = plan.last_step - trainer.step
    if left > 0:
        seconds = trainer.measure()
        estimate = f"about {duration(seconds * left)}: {left:,} steps of {seconds:.3g} s"
        say(console, f"time     {estimate}, evaluations and checkpoints aside")
    return trainer
