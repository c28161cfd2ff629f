"""One run on several processes of MLX: each takes its rows of every batch, all take the same step.

The whole model is in each process; gradients are added up once in an update. The processes meet as
`mlx.launch` has them meet: sockets in a ring, JACCL, NCCL. Data, schedule and checkpoints are those
of a single process. The functions here communicate: every process calls the same ones in the same
order. In a process that runs alone they change nothing.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx.nn.utils import average_gradients

from mlx_pam import outcome, processes
from mlx_pam.errors import BackendError

T = TypeVar("T")

LOST = re.compile(r"\[(ring|jaccl|nccl|mpi)\]", re.IGNORECASE)  # how MLX's errors of a link begin

_group: mx.distributed.Group | None = None


def join() -> None:
    """Meet the other processes that mlx.launch started."""
    global _group
    if _group is not None:
        return
    try:
        group = mx.distributed.init(strict=True)
    except RuntimeError as error:
        raise BackendError(f"the processes of mlx.launch must meet, got: {error}") from None
    if group.size() != processes.count():
        raise BackendError(
            f"the processes that meet must be all {processes.count()} of mlx.launch, "
            f"got {group.size()}"
        )
    _group = group


def size() -> int:
    """Processes that work together."""
    return _group.size() if _group else 1


def is_main() -> bool:
    """Whether this process prints, saves, and is the one that the others follow."""
    return size() == 1 or _group.rank() == 0


def share(batch: np.ndarray) -> np.ndarray:
    """This process's rows of a batch."""
    return batch[_group.rank() :: size()] if size() > 1 else batch


def total(value: float) -> float:
    """The sum of the processes' values, the same in each to the bit."""
    return math.fsum(_gathered(np.array([value])).tolist())


def mean(gradient: Any) -> Any:
    """The mean of the processes' gradients, a tree of arrays, by a few large messages."""
    return average_gradients(gradient, _group) if size() > 1 else gradient


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Surrounds what communicates: `BackendError` where another process is not there any more."""
    try:
        yield
    except RuntimeError as error:
        if not LOST.match(str(error)):
            raise
        raise BackendError(
            f"all {size()} processes of a run must go on, got: {error}; its own message says why. "
            "Start them again with --resume"
        ) from None


def agreed(values: np.ndarray) -> np.ndarray:
    """The main process's values, where rounding may differ and a decision hangs on them."""
    return _gathered(values[None])[0]


def _gathered(rows: np.ndarray) -> np.ndarray:
    """Every process's rows, `[n, ...]` -> `[processes n, ...]`, as they are: no type is changed."""
    if size() == 1:
        return rows
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    with together():
        gathered = np.array(mx.distributed.all_gather(mx.array(flat), group=_group))
    return gathered.view(rows.dtype).reshape(-1, *rows.shape[1:])


class Team:
    """The processes that share a run, see `mlx_pam.backend.Team`."""

    def any_of(self, flag: bool) -> bool:
        return bool(_gathered(np.array([flag])).any())

    def on_main(self, work: Callable[[], T]) -> T:
        message = outcome.message(work) if is_main() else b""
        length = int(_gathered(np.array([len(message)]))[0])
        message = message.ljust(length, b" ")[:length]
        return outcome.receive(agreed(np.frombuffer(message, np.uint8)).tobytes())

    def main_first(self, work: Callable[[], T]) -> T:
        if is_main():
            try:
                return work()
            finally:
                self.any_of(False)
        self.any_of(False)
        return work()

    def leave(self) -> None:
        self.any_of(False)  # a process that ended early would break the ring under the others
