"""Where a run begins: anew in an empty folder, or from the newest checkpoint of the same run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_pam import checkpoint
from mlx_pam.checkpoint import Checkpoint
from mlx_pam.config import Recipe, TrainConfig, require_count, require_range
from mlx_pam.errors import CheckpointError, ConfigError, RunError
from mlx_pam.training.metrics import LOG
from mlx_pam.training.plan import Plan
from mlx_pam.training.schedule import learning_rate
from mlx_pam.training.trainer import COUNTERS

SCHEDULE = (
    "steps", "batch_size", "accumulate", "recipe", "rates", "lr", "weight_decay",
    "warmup_steps", "clip_norm", "dtype", "deterministic", "backend", "on_nonfinite",
    "max_skips",
)  # fmt: skip
"""Settings that may change on resume; the run then goes on, though not as it would have."""
MODEL = ("model", "scale", "variant", "protect", "reset_at_documents")
"""Settings that make the model, which may not change."""


def starting_point(config: TrainConfig) -> Path | None:
    """The checkpoint to resume from, None to begin anew; raises if the folder does not fit that.

    A run that stopped before its first checkpoint, or never began, is resumed from the beginning:
    what restarts a run can always pass --resume. Checkpoints of which none is whole are an error.
    """
    run = config.run_folder
    newest = checkpoint.find(run)
    held = _held(run)
    if config.resume:
        if newest is None and held not in ([], [run / LOG]):
            raise CheckpointError(
                f"nothing to resume: {run} holds {held[-1].name}, but no complete checkpoint; add "
                "--overwrite to start over and keep what is there in a folder of its own"
            )
        return newest
    if held and not config.overwrite:
        raise ConfigError(
            f"out must be a folder without a run, got {run}, which holds {(newest or held[0]).name}"
            ": add --resume to go on with that run, or --overwrite to begin anew and keep it in a "
            "folder of its own, or give another --out"
        )
    return None


def set_aside(run: Path) -> Path | None:
    """Move the run that a folder holds to `old-1` in it, or to the next such name that is free."""
    held = _held(run)
    if not held:
        return None
    held += [path for path in (run / "tensorboard", run / "wandb") if path.exists()]  # of trackers
    names = (run / f"old-{number}" for number in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    try:
        aside.mkdir()
        for path in held:
            path.rename(aside / path.name)
    except OSError as error:
        raise RunError(f"cannot move the run in {run} to {aside}: {error}") from error
    return aside


def _held(run: Path) -> list[Path]:
    """What a folder holds of a run: its log, which of its checkpoints is the best, and those."""
    files = [path for path in (run / LOG, run / checkpoint.BEST) if path.exists()]
    return files + checkpoint.step_folders(run)


def load_start(path: Path, plan: Plan) -> Checkpoint:
    """Read the checkpoint; it must be of the same model, tokenizer, data and order of the data."""
    try:
        start = checkpoint.load(path, optimizer=True)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; remove {path} to resume from the checkpoint before it"
        ) from error
    saved = start.training
    if saved is None:
        raise CheckpointError(
            f"{path / checkpoint.TRAINING} is missing: there is nothing to resume"
        )
    with _reading(path):
        must_agree = _agreement(saved, plan) | _model_agreement(start, plan)
    for name, (then, now) in must_agree.items():
        if then != now:
            raise ConfigError(
                f"{name} must be {then!r} to resume {path}, got {now!r}: set it back, or begin a "
                "new run with another --out"
            )
    with _reading(path):
        changed = plan.corpus.changed(saved["data"])
    if changed:
        raise ConfigError(
            f"the text of the data changed since {path} was saved: {changed}: restore it to "
            "resume, or start a new run with another --out"
        )
    if saved["step"] > plan.steps:
        raise ConfigError(
            f"steps must be at least {saved['step']}, where {path} stands, got {plan.steps}"
        )
    with _reading(path):
        plan.batches().restore(saved["data"])  # tried while nothing is built yet
    return start


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What a record lacks, or has of another type, as a `CheckpointError` that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path / checkpoint.TRAINING} is damaged, or of another version "
            f"({type(error).__name__}: {error}): resume from another checkpoint"
        ) from error


def _agreement(saved: dict[str, Any], plan: Plan) -> dict[str, tuple[Any, Any]]:
    """What must be as it was, beside the model: name -> (then, now)."""
    data, config = saved["data"], saved["config"]
    for name, value in [("step", saved["step"]), ("cursor", data["cursor"])]:
        require_count(name, value, least=0)
    for name in COUNTERS:
        require_range(name, saved.get(name, 0), 0.0)
    return {
        "tokenizer": (
            _known_by(saved.get("tokenizer", "gpt2"), data["tokenizer_fingerprint"]),
            _known_by(plan.tokenizer.name, plan.tokenizer.fingerprint),
        ),
        **plan.corpus.agreement(data),
        "seq_len": (config["seq_len"], plan.config.seq_len),
        "seed": (config["seed"], plan.config.seed),
    }


def _model_agreement(start: Checkpoint, plan: Plan) -> dict[str, tuple[Any, Any]]:
    """The model's own numbers, after the settings that they come from: name -> (then, now)."""
    pairs = _pairs(start.config.to_dict(), plan.model.to_dict())
    if start.config == plan.model or plan.model != plan.config.model_config():
        return pairs
    then, now = start.training["config"], plan.config.to_dict()
    return {name: (then[name], now[name]) for name in MODEL if name in then} | pairs


def _known_by(name: str, fingerprint: str) -> str:
    return f"{name} ({fingerprint[:16]})"


def changes(start: Checkpoint, config: TrainConfig, backend: str) -> dict[str, tuple[Any, Any]]:
    """Settings of the schedule that are not those of the run so far: name -> (then, now)."""
    pairs = _pairs(start.training["config"], config.to_dict())
    pairs["backend"] = (start.training.get("backend"), backend)  # what `auto` stands for may change
    known = [name for name in SCHEDULE if name in start.training["config"]]
    return {name: pairs[name] for name in known if pairs[name][0] != pairs[name][1]}


def rate_change(start: Checkpoint, plan: Plan) -> str | None:
    """How the learning rate jumps where a changed schedule takes over, in words; None if it fits.

    Compared are the rates of the next step under both schedules, or, where the old one has ended,
    its last.
    """
    step = start.training["step"]
    try:
        steps, recipe = start.training["steps"], Recipe(**start.training["recipe"])
        then = learning_rate(min(step + 1, steps), steps, recipe)
    except (LookupError, TypeError, ValueError):  # of a version with other recipes
        return None
    if step >= plan.steps:
        return None
    now = learning_rate(step + 1, plan.steps, plan.recipe)
    if math.isclose(then, now, rel_tol=1e-3):
        return None
    before = f"step {steps:,}, the old schedule's last, had" if step >= steps else "would have been"
    remedy = "; pass a lower --lr to avoid the jump" if now > 2 * then else ""
    return f"the learning rate of step {step + 1:,} is {now:.3g} ({before} {then:.3g}){remedy}"


def _pairs(then: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (then.get(name), now.get(name)) for name in {**then, **now}}
