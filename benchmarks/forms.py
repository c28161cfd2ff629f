"""The memory's operator in one of its forms, forward or with its gradients, as a workload."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from mlx_pam.benchmarks.libraries import Facts, Library, Unavailable
from mlx_pam.config import PRESETS

# The most that the T x T arrays of the parallel form take at a time, per head and pair of tokens:
# forward, and with gradients; MLX's own count, uncompiled, at T = 2048.
SQUARE_BYTES = {False: 36, True: 80}
SHARE_OF_MEMORY = 0.6
BLOCK = 1 << 16  # random numbers, repeated
LARGE = 1 << 30  # bytes from which a step is long enough to be waited for


class Operator(Library):
    """Calls of `retrieve` on random arrays, with the heads of a PAM."""

    unit = "tokens/s"

    def __init__(self, *, form: str, scale: str, backend: str, **tiles: int) -> None:
        """tiles: constants of `mlx_pam.ops.metal.launch` to try in place of its own."""
        super().__init__(backend)
        config = PRESETS["pam"][scale]
        self._form, self._heads, self._d = form, config.num_heads, config.head_dim
        if tiles:
            _set_tiles(tiles)

    def prepare(self, *, seq_len: int, batch_size: int, dtype: str, backward: bool) -> Facts:
        square = SQUARE_BYTES[backward] * batch_size * self._heads * seq_len**2
        self._is_large = self._form == "parallel" and square > LARGE
        if self._is_large:
            _require_memory(square, seq_len)
        self._tokens = batch_size * seq_len
        rows = (batch_size, seq_len, self._heads, 2, self._d)
        states = (batch_size, self._heads, 2, self._d, self._d)
        numbers = np.random.default_rng(0).standard_normal((6, BLOCK), np.float32)
        log_decay = np.resize(-0.01 * numbers[0] ** 2, rows[:3])
        q, k, v, dy = (self.array(np.resize(block, rows), dtype) for block in numbers[:4])
        state, dstate = (self.array(np.resize(block, states)) for block in numbers[4:])
        inputs, cotangents = [q, k, v, self.array(log_decay), state], [dy, dstate]
        passes = _mlx_passes if self.is_mlx else _torch_passes
        self._call = passes(self._form, inputs, cotangents, backward)
        self.step()
        self.synchronise()
        if self.is_mlx:
            importlib.import_module("mlx.core").reset_peak_memory()
        return self._facts(seq_len, dtype, backward)

    def _facts(self, time: int, dtype: str, backward: bool) -> Facts:
        """What the cost model needs to know of the call."""
        package = "mlx_pam.ops" if self.is_mlx else "mlx_pam.torch.ops"
        chunk = importlib.import_module(f"{package}.retrieval").chunk_size(self._d)
        if self._form == "fused":
            chunk = self._fused_chunk(dtype, backward)
        facts: Facts = {"chunk": chunk}
        if self.is_mlx:
            from mlx_pam.benchmarks import dispatches

            facts["kernels"] = dispatches.of_retrieval(self._form, time, backward, self._d)
        return facts

    def _fused_chunk(self, dtype: str, backward: bool) -> int:
        if self.is_mlx:
            return importlib.import_module("mlx_pam.ops.metal.launch").CHUNK
        torch = importlib.import_module("torch")
        from mlx_pam.torch.kernels.operator import ARITHMETIC

        arithmetic = ARITHMETIC[getattr(torch, dtype)]
        return (arithmetic.backward if backward else arithmetic.forward).chunk

    def step(self) -> float:
        self.start(*self._call(), alone=self._is_large)
        return self._tokens

    def rest(self) -> None:
        self._call = None
        super().rest()

    def peak_bytes(self) -> int:
        if self.is_mlx:
            return importlib.import_module("mlx.core").get_peak_memory()
        return super().peak_bytes()


def _set_tiles(tiles: dict[str, int]) -> None:
    launch = importlib.import_module("mlx_pam.ops.metal.launch")
    for name, value in tiles.items():
        if not hasattr(launch, name):
            raise Unavailable(f"the fused kernels have no {name} to set")
        setattr(launch, name, value)


def _require_memory(needed: int, time: int) -> None:
    """A machine that has to swap is of no use, to a measurement or to its owner."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > SHARE_OF_MEMORY * memory:
        raise Unavailable(
            f"T x T arrays of {time} tokens take {needed / 1e9:.0f} GB, and this machine has "
            f"{memory / 1e9:.0f}"
        )


Call = Callable[[], list[Any]]


def _mlx_passes(form: str, inputs: list[Any], cotangents: list[Any], backward: bool) -> Call:
    """The call and its results: outputs, and with them the gradients of all inputs."""
    import mlx.core as mx

    from mlx_pam.ops.retrieval import retrieve

    def forward(*arrays: mx.array) -> list[mx.array]:
        return list(retrieve(*arrays, form=form))

    def both(*arrays: mx.array) -> list[mx.array]:
        outputs, gradients = mx.vjp(forward, list(arrays[:5]), list(arrays[5:]))
        return [*outputs, *gradients]

    function, arrays = (both, [*inputs, *cotangents]) if backward else (forward, inputs)
    if mx.default_device() == mx.gpu:  # on a CPU compiling takes longer than all that is measured
        function = mx.compile(function)
    return lambda: function(*arrays)


def _torch_passes(form: str, inputs: list[Any], cotangents: list[Any], backward: bool) -> Call:
    import torch

    from mlx_pam.torch.ops.retrieval import retrieve

    if not backward:
        return lambda: list(retrieve(*inputs, form=form))
    leaves = [x.requires_grad_() for x in inputs]

    def both() -> list[torch.Tensor]:
        outputs = retrieve(*leaves, form=form)
        return [*outputs, *torch.autograd.grad(outputs, leaves, cotangents)]

    return both
