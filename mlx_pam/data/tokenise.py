"""Text to tokens on all cores: pieces are encoded by themselves and come back in their order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

MOST_WORKERS = 32
"""Beyond it the one thread that reads the text cannot keep up."""


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux, where a job may be bound to a few
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    function: Callable[[In], Out], items: Iterable[In], workers: int | None = None
) -> Iterator[Out]:
    """function(item) for each item, by `workers` threads (None: one for each core).

    The results come in the order of the items, whatever the number of threads, and errors of items
    and threads in their turn; twice as many items as threads are taken ahead.
    """
    workers = min(workers or cores(), MOST_WORKERS)
    pool = ThreadPoolExecutor(workers, "tokenise")
    waiting: deque[Future[Out]] = deque()
    try:
        for future in _submitted(pool, function, items):
            waiting.append(future)
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _submitted(
    pool: ThreadPoolExecutor, function: Callable[[In], Out], items: Iterable[In]
) -> Iterator[Future[Out]]:
    try:
        for item in items:
            yield pool.submit(function, item)
    except Exception as error:  # of the items: it comes after the results of those before it
        failed: Future[Out] = Future()
        failed.set_exception(error)
        yield failed
