"""A decoder's step recorded once and replayed: on CUDA one graph in place of hundreds of launches.

It takes a state of one size, which stays where it lies: a memory's, not a transformer's cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]
"""(ids `[B, 1]`, phases `[B, 1, 2, width]`, memories) -> logits `[B, V]`, memories after them."""

WARM_UP = 3  # runs before the recording: kernels are compiled and libraries loaded in them


def cuda_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Capture everything that `run` launches as one graph; returns the call that replays it."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a server has other threads
        run()
    return graph.replay


class Replayed:
    """A step over memories of its own, which it brings up to date in place."""

    def __init__(
        self,
        step: Step,
        ids: Tensor,
        phases: Tensor,
        memories: list[Tensor],
        record: Callable[[Callable[[], None]], Callable[[], None]] = cuda_graph,
    ):
        """Record a step of this shape; the memories given are copied and left as they are."""
        self._ids, self._phases = ids.clone(), phases.clone()
        self.memories = [memory.clone() for memory in memories]
        self._logits = ids  # until the first run

        def run() -> None:
            self._logits, after = step(self._ids, self._phases, self.memories)
            for memory, new in zip(self.memories, after, strict=True):
                memory.copy_(new)

        self._replay = record(run)
        for memory, old in zip(self.memories, memories, strict=True):
            memory.copy_(old)  # as before the recording

    def __call__(self, ids: Tensor, phases: Tensor) -> Tensor:
        """Logits after one more token of each text; valid until the next call."""
        self._ids.copy_(ids)
        self._phases.copy_(phases)
        self._replay()
        return self._logits
