"""`sweep.json`: what a sweep's folder was begun with, and must be gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_pam import durable
from mlx_pam.config import SweepConfig, require, require_range
from mlx_pam.errors import CheckpointError, ConfigError, RunError

RECORD = "sweep.json"
EXTENDED = ("models", "scales", "variants")
"""Lists that may grow; the number of seeds may, too."""
FREE = (
    "out", "jobs", "dry_run", "json", "save_every", "sample_every", "diagnostics_every", "keep",
    *EXTENDED, "seeds",
)  # fmt: skip
"""Settings that may be others than those recorded: they change no run that is there."""


@dataclass(frozen=True)
class Record:
    """The settings, with every model, scale, variant and seed that was asked for so far."""

    settings: dict[str, Any]
    runs: dict[str, dict[str, Any]]
    """name -> model, learning rate and the like."""


def read(config: SweepConfig) -> Record | None:
    """The record in the folder, if there is one, whose settings must be those of `config`."""
    path = config.out / RECORD
    if not path.exists():
        return None
    try:
        found = durable.read_json(path)
        settings = SweepConfig(**found["settings"]).to_dict()
        record = Record(settings, {run["name"]: run for run in found["runs"]})
        for run in found["runs"]:
            require(isinstance(run["lr_origin"], str), "lr_origin", "a text", run["lr_origin"])
            if run["lr"] is not None or settings["search"] is None:
                require_range("lr", run["lr"], 0.0, 1.0, open_least=True)
    except (CheckpointError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"out must be the folder of a sweep, or a new one, got {config.out}, whose {RECORD} "
            f"cannot be read ({error}): give another --out"
        ) from error
    for name, now in config.to_dict().items():
        then = settings[name]
        if name not in FREE and then != now:
            raise ConfigError(
                f"{name} must be {then!r}, with which {config.out} was begun, got {now!r}: set it "
                "back, or give another --out"
            )
    return record


def write(config: SweepConfig, runs: list[dict[str, Any]]) -> None:
    """Record the settings and the runs, beside those that are recorded already."""
    settings = config.to_dict()
    if then := read(config):
        for name in EXTENDED:
            words = f"{then.settings[name]},{settings[name]}".split(",")
            settings[name] = ",".join(dict.fromkeys(word.strip() for word in words if word.strip()))
        settings["seeds"] = max(then.settings["seeds"], settings["seeds"])
    rows = (then.runs if then else {}) | {run["name"]: run for run in runs}
    record = {
        "settings": settings,
        "steps": config.steps,
        "tokens": config.steps * config.tokens_per_step,
        "runs": list(rows.values()),
    }
    save(config.out / RECORD, record)


def save(path: Path, table: dict[str, Any]) -> None:
    """Write a file of the sweep, whole or not at all; `RunError` where it cannot be written."""
    try:
        durable.replace(path, lambda file: durable.write_json(file, table))
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror}; put that right, and the same command goes on"
        ) from error
