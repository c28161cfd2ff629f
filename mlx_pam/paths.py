"""`~` at the start of a path is the home folder: a shell does not expand it in `--out=~/runs`."""

from __future__ import annotations

from pathlib import Path

from mlx_pam.errors import ConfigError


def expand_home(path: Path | str) -> Path:
    """The path with `~` or `~NAME` expanded; raises `ConfigError` if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"~NAME at the start of a path must be a user of this machine, got {str(path)!r}: "
            f"./{path} is a folder of that name"
        ) from None
