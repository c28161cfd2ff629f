"""`sweep.json`: what a sweep's folder was begun with, and must be gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_pam import durable
from mlx_pam.config import SweepConfig
from mlx_pam.errors import CheckpointError, ConfigError

RECORD = "sweep.json"
EXTENDED = ("models", "scales", "variants")
"""Lists that may grow."""
FREE = ("out", "jobs", "dry_run", "json", "save_every", "sample_every", "keep", *EXTENDED, "seeds")
"""Settings that may be others than those recorded: they change no run."""


def read(config: SweepConfig) -> dict[str, Any] | None:
    """The record in the folder, if there is one, whose settings must be those of `config`."""
    path = config.out / RECORD
    if not path.exists():
        return None
    try:
        found = durable.read_json(path)
        then = {name: _known(found["settings"], name) for name in config.to_dict()}
    except (CheckpointError, LookupError, TypeError) as error:
        raise ConfigError(
            f"out must be the folder of a sweep, or a new one, got {config.out}, whose {RECORD} "
            f"cannot be read ({error}): give another --out"
        ) from error
    for name, value in config.to_dict().items():
        if name not in FREE and value != then[name]:
            raise ConfigError(
                f"{name} must be {then[name]!r}, with which {config.out} was begun, got {value!r}: "
                "set it back, or give another --out"
            )
    return found


def write(config: SweepConfig, found: Mapping[str, Any] | None, runs: list[dict[str, Any]]) -> None:
    """Record the settings and the runs; what is there already of either stays in it."""
    settings = config.to_dict()
    then = found["settings"] if found else settings
    for name in EXTENDED:
        words = [word.strip() for text in (then[name], settings[name]) for word in text.split(",")]
        settings[name] = ",".join(dict.fromkeys(filter(None, words)))
    settings["seeds"] = max(then["seeds"], settings["seeds"])
    planned = {run["name"]: run for run in [*(found["runs"] if found else []), *runs]}
    record = {
        "settings": settings,
        "steps": config.steps,
        "tokens": config.steps * config.tokens_per_step,
        "runs": list(planned.values()),
    }
    durable.replace(config.out / RECORD, lambda path: durable.write_json(path, record))


def _known(settings: Mapping[str, Any], name: str) -> Any:
    """A setting that was not there yet when the record was written had its default."""
    return settings.get(name, SweepConfig.__dataclass_fields__[name].default)
