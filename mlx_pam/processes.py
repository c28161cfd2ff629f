"""Which of a launcher's processes this one is, by the variables that the launcher sets."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")

# mlx.launch names a file with an entry for each process: its addresses or its Thunderbolt devices
MLX_FILES = ("MLX_HOSTFILE", "MLX_IBV_DEVICES")


def started_by() -> Literal["torchrun", "mlx.launch"] | None:
    """The launcher that started several processes; None where this one is alone."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return "torchrun"
    return "mlx.launch" if _mlx_count() > 1 else None


def count() -> int:
    """Processes that were started together; 1 without a launcher."""
    return _mlx_count() if started_by() == "mlx.launch" else int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """This one's number, from 0."""
    variable = {"torchrun": "RANK", "mlx.launch": "MLX_RANK", None: ""}[started_by()]
    return int(os.environ.get(variable, 0))


def is_main() -> bool:
    """Whether this is the one that prints and writes."""
    return rank() == 0


def launcher() -> str:
    """What stands before `mlx_pam` on the command line that started this process."""
    if started_by() == "mlx.launch":
        own = count() == count_here()
        return f"mlx.launch -n {count()} " if own else "mlx.launch --hostfile HOSTFILE "
    if started_by() == "torchrun":
        return f"torchrun --nproc-per-node {count_here()} -m "
    return ""


def count_here() -> int:
    """Those of the processes that share this machine's memory."""
    if started_by() == "mlx.launch":
        hosts = [_host(entry) for entry in _entries()]
        return hosts.count(hosts[rank()]) if hosts else count()
    return int(os.environ.get("LOCAL_WORLD_SIZE") or count())


def _mlx_count() -> int:
    if "MLX_RANK" not in os.environ:
        return 1
    return len(_entries()) or int(os.environ.get("MLX_WORLD_SIZE") or 1)  # NCCL has no file


def _entries() -> list:
    return next((_read(os.environ[name]) for name in MLX_FILES if os.environ.get(name)), [])


@functools.cache
def _read(path: str) -> list:
    text = Path(path).read_text("utf-8")
    return json.loads(text) if text.strip() else []


def _host(entry: list) -> str:
    """The machine of an entry: each of a ring's lists `address:port`."""
    return str(entry[0]).rpartition(":")[0] or str(entry)


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
