"""Which of a launcher's processes this one is, by the variables that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def count() -> int:
    """Processes that were started together; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """This one's number, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def is_main() -> bool:
    """Whether this is the one that prints and writes."""
    return rank() == 0


def launcher() -> str:
    """What stands before `mlx_pam` on the command line that started this process."""
    if count() == 1:
        return ""
    return f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE', count())} -m "


class Alone:
    """The team of a single process, see `mlx_pam.backend.Team`."""

    def any_of(self, flag: bool) -> bool:
        return flag

    def on_main(self, work: Callable[[], T]) -> T:
        return work()

    def main_first(self, work: Callable[[], T]) -> T:
        return work()

    def leave(self) -> None:
        pass
