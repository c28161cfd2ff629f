"""What every workload has: its library's description, arrays, clock and memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mlx_pam.backend import get_backend
from mlx_pam.benchmarks import memory
from mlx_pam.errors import MlxPamError

Facts = dict[str, Any]


class Unavailable(MlxPamError):
    """The reason why a variant cannot run here."""


class Library:
    """A workload's array library; see `workloads.Workload`."""

    def __init__(self, backend: str) -> None:
        self.backend = get_backend(backend)
        self.description = self.backend.description
        self.facts: Facts = {"library_bytes": memory.resident_bytes()}  # held before all work
        self.is_mlx = self.backend.name == "mlx"
        self.synchronise = _synchroniser(self.is_mlx)
        self._running: tuple[Any, ...] = ()

    def prepare(self, **turn: Any) -> Facts:
        return {}

    def rest(self) -> None:
        """Give the memory of a turn back, for the processes that take the next ones."""
        self._running = ()
        if self.is_mlx:
            importlib.import_module("mlx.core").clear_cache()
        memory.give_back()

    def peak_bytes(self) -> int:
        on_cpu = "CPU" in self.description
        return memory.peak_bytes() if on_cpu else self.backend.peak_memory()

    def array(self, numbers: np.ndarray, dtype: str = "float32") -> Any:
        """An array on the device that does the work."""
        if self.is_mlx:
            mx = importlib.import_module("mlx.core")
            array = mx.array(numbers).astype(getattr(mx, dtype))
            mx.eval(array)
            return array
        torch = importlib.import_module("torch")
        from mlx_pam.torch.runtime import best_device

        return torch.from_numpy(numbers).to(best_device(), getattr(torch, dtype))

    def start(self, *arrays: Any, alone: bool = False) -> None:
        """Have the arrays computed; PyTorch does so by itself.

        Two steps are under way at most: the device always has one to go on with, and results that
        nobody waits for do not fill the memory. Or one, if it is to be alone.
        """
        if self.is_mlx:
            mx = importlib.import_module("mlx.core")
            if alone:
                mx.eval(*arrays)
                return
            mx.async_eval(*arrays)
            mx.eval(*self._running)
            self._running = arrays


def _synchroniser(is_mlx: bool) -> Callable[[], None]:
    """Waits for the device; on a CPU PyTorch has nothing to wait for."""
    if is_mlx:
        return importlib.import_module("mlx.core").synchronize
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        return torch.cuda.synchronize
    return torch.mps.synchronize if torch.backends.mps.is_available() else lambda: None
