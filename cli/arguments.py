"""From a dataclass to the command line that fills it in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import tyro

T = TypeVar("T")


def parse(cls: type[T], argv: Sequence[str], prog: str, description: str) -> T:
    """An instance of the dataclass `cls` from the words of a command line."""
    return tyro.cli(
        cls,
        args=list(argv),
        prog=prog,
        description=description,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
