"""Files that commands write their results to: checked before the work, replaced whole after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlx_pam import durable
from mlx_pam.errors import ConfigError


def require_output(name: str, path: Path, *, make_folder: bool = False) -> None:
    """Raise a `ConfigError` unless a file can be written at `path`, the value of option `name`.

    make_folder: create the folder that it is to be in.
    """
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        reason = durable.obstacle(path)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise _unwritable(name, path, reason)


def write_output(name: str, path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` make the file, which appears whole or not at all; raises a `ConfigError`."""
    try:
        durable.replace(path, write)
    except OSError as error:
        raise _unwritable(name, path, error.strerror or str(error)) from error


def _unwritable(name: str, path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{name} must be a file that can be written, got {path}: {reason}")
