"""Where a run begins: anew in an empty folder, or from the newest checkpoint of the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_pam import checkpoint
from mlx_pam.checkpoint import Checkpoint
from mlx_pam.config import TrainConfig
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.training.metrics import LOG
from mlx_pam.training.plan import Plan

SCHEDULE = (
    "steps", "batch_size", "accumulate", "recipe", "lr", "weight_decay", "warmup_steps",
    "clip_norm", "dtype", "backend",
)  # fmt: skip
"""Settings that may change on resume; the run then goes on, though not as it would have."""


def starting_point(config: TrainConfig) -> Path | None:
    """The checkpoint to resume from, None to begin anew; raises if the folder does not fit that."""
    run = config.run_folder
    newest = checkpoint.find(run)
    if config.resume and newest is None:
        raise CheckpointError(
            f"nothing to resume: {run} holds no complete checkpoint; leave --resume out to begin"
        )
    if not config.resume and (newest or (run / LOG).exists()):
        held = newest or run / LOG
        raise ConfigError(
            f"out must be a folder without a run, got {run}, which holds {held.name}: add "
            "--resume to go on with that run, or give another --out"
        )
    return newest


def load_start(path: Path, plan: Plan) -> Checkpoint:
    """Read the checkpoint; it must be of the same model, tokenizer, data and order of the data."""
    start = checkpoint.load(path, optimizer=True)
    saved = start.training
    if saved is None:
        raise CheckpointError(
            f"{path / checkpoint.TRAINING} is missing: there is nothing to resume"
        )
    config = plan.config
    must_agree = {
        **_pairs(start.config.to_dict(), plan.model.to_dict()),
        "tokenizer": (saved["data"]["tokenizer_fingerprint"], plan.tokenizer.fingerprint),
        **plan.corpus.agreement(saved["data"]),
        "seq_len": (saved["config"]["seq_len"], config.seq_len),
        "seed": (saved["config"]["seed"], config.seed),
    }
    for name, (then, now) in must_agree.items():
        if then != now:
            raise ConfigError(
                f"{name} must be {then!r} to resume {path}, got {now!r}: set it back, or begin a "
                "new run with another --out"
            )
    if saved["step"] > plan.steps:
        raise ConfigError(
            f"steps must be at least {saved['step']}, where {path} stands, got {plan.steps}"
        )
    return start


def changes(start: Checkpoint, config: TrainConfig, backend: str) -> dict[str, tuple[Any, Any]]:
    """Settings of the schedule that are not those of the run so far: name -> (then, now)."""
    pairs = _pairs(start.training["config"], config.to_dict())
    pairs["backend"] = (start.training["backend"], backend)  # what `auto` stands for may change
    return {name: pairs[name] for name in SCHEDULE if pairs[name][0] != pairs[name][1]}


def _pairs(then: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (then.get(name), now.get(name)) for name in {**then, **now}}
