"""The MLX runtime: build a model, decode with it; `mlx_pam.learner` trains it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_pam import blas, distributed, host_memory, processes
from mlx_pam.arrays import DTYPES, named_weights, set_weights, to_numpy
from mlx_pam.config import ModelConfig
from mlx_pam.decoder_state import checked_state, room, state_shapes
from mlx_pam.learner import Learner
from mlx_pam.models import Model
from mlx_pam.models import build as build_model
from mlx_pam.models.decode import next_logits
from mlx_pam.ops.compiling import can_compile
from mlx_pam.ops.retrieval import FORMS, retrieve
from mlx_pam.parameters import initial_weights

PREFILL_TOKENS = 1024  # prompt tokens per row read at once
COMPILED_FROM = 1000  # tokens to come


def _step_function(model: Model, tokens: int) -> Callable:
    """One token through the model, compiled where about so many tokens earn it back."""

    step = partial(next_logits, model)
    worth_it = mx.default_device() == mx.gpu or tokens >= COMPILED_FROM  # seconds on a CPU
    return mx.compile(step, inputs=model.state) if worth_it and can_compile() else step


class Decoder:
    """Texts being continued, see `mlx_pam.backend.Decoder`."""

    def __init__(self, model: Model, tokens: int = 0):
        self.model = model
        self._memories: list[mx.array] = []
        self._positions = np.zeros(0, np.int64)
        self._step = _step_function(model, tokens)

    def prefill(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = lambda: None
    ) -> np.ndarray:
        self._memories, self._positions = [], np.zeros(len(prompts), np.int64)
        return self.extend(prompts, before_chunk)

    def extend(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = lambda: None
    ) -> np.ndarray:
        first, lengths = self._positions, np.array([len(prompt) for prompt in prompts])
        end = int(first.max() + lengths.max())  # padding takes room too
        ids = np.zeros((len(prompts), lengths.max()), np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt  # padding comes last and leaves the memory as it was
        rows, memories, last = np.arange(len(prompts)), self._memories, None
        for start in range(0, ids.shape[1], PREFILL_TOKENS):
            before_chunk()
            chunk = np.arange(start, min(start + PREFILL_TOKENS, ids.shape[1]))
            positions = chunk if (first == 0).all() else first[:, None] + chunk  # [(B,) T]
            inside = chunk < lengths[:, None]  # [B, T]
            mask = None if inside.all() else mx.array(inside)
            memories = self._with_room(memories, end) if memories else None
            hidden, memories = self.model.hidden(
                mx.array(ids[:, chunk]), self.model.phases(positions), memories, mask
            )
            final = np.clip(lengths - 1 - start, 0, len(chunk) - 1)
            here = hidden[mx.array(rows), mx.array(final)]  # [B, (2,) D]
            ends_here = mx.array(inside.any(axis=1)).reshape(-1, *[1] * (here.ndim - 1))
            last = here if last is None else mx.where(ends_here, here, last)
            mx.eval(last, memories)
        self._memories, self._positions = memories, first + lengths
        x, table = self.model.embedding.head(last)
        return distributed.agreed(np.array((x @ table.T).astype(mx.float32)))

    def step(self, tokens: np.ndarray) -> np.ndarray:
        phases = self.model.phases(self._positions[:, None])
        ids = mx.array(np.asarray(tokens, np.int32)[:, None])
        self._positions = self._positions + 1
        self._memories = self._with_room(self._memories, int(self._positions.max()))
        logits, self._memories = self._step(ids, phases, self._memories)
        mx.eval(logits, self._memories)
        return distributed.agreed(np.array(logits))

    def _with_room(self, memories: list[mx.array], tokens: int) -> list[mx.array]:
        """The memories with room for so many tokens; only a transformer's ever have to grow."""
        shapes = state_shapes(self.model.config, memories[0].shape[0], room(tokens)).values()
        return [_grown(memory, shape) for memory, shape in zip(memories, shapes, strict=True)]

    def state(self) -> dict[str, np.ndarray]:
        tokens = int(self._positions.max(initial=0))
        shapes = state_shapes(self.model.config, len(self._positions), tokens)
        memories = {
            name: np.array(memory[tuple(map(slice, shape))])
            for (name, shape), memory in zip(shapes.items(), self._memories, strict=True)
        }
        return memories | {"positions": self._positions}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._memories = [mx.array(x) for x in checked_state(self.model.config, state)]
        self._positions = np.asarray(state["positions"], np.int64)


class MLXBackend:
    """MLX on this machine's Metal GPU, CUDA GPU or CPU, see `mlx_pam.backend.Backend`."""

    name = "mlx"
    forms = tuple(FORMS)
    Learner = Learner
    Decoder = Decoder

    def __init__(self, parallel: str | None = None):
        together = parallel is not None and processes.count() > 1
        if together:
            distributed.join()
        self.team = distributed.Team() if together else processes.Alone()

    @property
    def device(self) -> str:
        if mx.metal.is_available():
            return "metal"
        return "cuda" if mx.default_device() == mx.gpu else "cpu"

    @cached_property
    def description(self) -> str:
        chip = platform.processor() or platform.machine()
        device = {"metal": "Metal", "cuda": "CUDA", "cpu": "CPU"}[self.device]
        line = f"MLX {version('mlx')} on {device} ({chip})"
        if distributed.size() > 1:
            line = f"{line}, {distributed.size()} processes"
        return f"{line}, {blas.preload()}" if self.device == "cpu" else line

    def build(
        self, config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None, seed: int = 0
    ) -> nn.Module:
        model = build_model(config)
        set_weights(model, initial_weights(config, seed) if weights is None else weights)
        return model

    def weights(self, model: nn.Module) -> dict[str, np.ndarray]:
        return named_weights(model)

    def retrieve_with_gradients(
        self, inputs: Sequence[np.ndarray], cotangents: Sequence[np.ndarray], form: str, dtype: str
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        q, k, v, log_decay, state = (mx.array(x, mx.float32) for x in inputs)
        primals = [*(x.astype(DTYPES[dtype]) for x in (q, k, v)), log_decay, state]
        dy, dstate = (mx.array(x, mx.float32) for x in cotangents)
        outputs, gradients = mx.vjp(
            lambda *arrays: list(retrieve(*arrays, form=form)),
            primals,
            [dy.astype(DTYPES[dtype]), dstate],
        )
        return [to_numpy(x) for x in outputs], [to_numpy(x) for x in gradients]

    def leave_thread(self) -> None:
        """Without this, a process that exits soon after the thread may abort on a Linux CPU."""
        mx.clear_streams()

    def memory_bytes(self) -> int:
        if self.device == "cpu":
            return host_memory.total_bytes()
        info = mx.device_info()
        own = info.get("max_recommended_working_set_size") or info["total_memory"]
        return own // processes.count_here()

    def limit_memory(self, limit: int) -> None:
        """Beyond the limit MLX waits for what it has begun; half of it may be kept of freed memory.

        Kept, it serves the next step at once; without a bound it would stay with this process when
        the machine needs it. On Metal as much is wired down, so that nothing is paged out.
        """
        mx.set_memory_limit(limit)
        if self.device != "cpu":
            mx.set_cache_limit(limit // 2)
        if self.device == "metal":
            mx.set_wired_limit(min(limit, self.memory_bytes()))

    def peak_memory(self) -> int:
        # on a CPU MLX counts what it has asked for ahead of time and not touched yet
        arrays = 0 if self.device == "cpu" else mx.get_peak_memory()
        return max(host_memory.peak_bytes(), arrays)


def _grown(memory: mx.array, shape: tuple[int, ...]) -> mx.array:
    shape = tuple(map(max, memory.shape, shape))
    if memory.shape == shape:
        return memory
    more = [(0, new - old) for new, old in zip(shape, memory.shape, strict=True)]
    return mx.pad(memory, more)
