"""The PyTorch runtime: build a model and decode with it, on CUDA, MPS or the CPU.

`mlx_pam.torch.learner` trains it.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from mlx_pam import compilers, host_memory, processes
from mlx_pam.config import MemoryConfig, ModelConfig
from mlx_pam.decoder_state import checked_state, room, state_shapes
from mlx_pam.parameters import initial_weights
from mlx_pam.torch import distributed
from mlx_pam.torch.arrays import DTYPES, named_weights, set_weights, to_numpy
from mlx_pam.torch.learner import Learner
from mlx_pam.torch.models import Model
from mlx_pam.torch.models import build as build_model
from mlx_pam.torch.ops.fusing import as_written, can_compile, compile_layers
from mlx_pam.torch.ops.product import fused_product, product
from mlx_pam.torch.ops.retrieval import FORMS, retrieve
from mlx_pam.torch.replay import Replayed

PREFILL_TOKENS = 1024  # prompt tokens per row read at once
COMPILED_FROM = 1000  # tokens to come
REPLAYED_FROM = 64  # tokens to come; recording a CUDA graph takes as long as a few steps


def can_replay(model: Model) -> bool:
    """Whether a step can be a CUDA graph: of a state of one size, whole in this process."""
    on_cuda = next(model.parameters()).device.type == "cuda"
    return on_cuda and isinstance(model.config, MemoryConfig) and distributed.size() == 1


def best_device() -> torch.device:
    """CUDA, else Apple's MPS, which does not talk to other processes, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    mps = torch.backends.mps.is_available() and distributed.size() == 1
    return torch.device("mps" if mps else "cpu")


class Decoder:
    """Texts being continued, see `mlx_pam.backend.Decoder`."""

    def __init__(self, model: Model, tokens: int = 0):
        self.model = model
        self._device = next(model.parameters()).device
        # the compiler takes seconds, and more on a GPU, which a long text earns back
        self._compiled = tokens >= COMPILED_FROM and can_compile(self._device.type)
        if self._compiled:
            compile_layers(model.layers)
        self._memories: list[Tensor] = []
        self._positions = np.zeros(0, np.int64)
        self._replayed: Replayed | None = None
        self._may_replay = tokens >= REPLAYED_FROM and can_replay(model)

    @torch.inference_mode()
    def prefill(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = lambda: None
    ) -> np.ndarray:
        self._memories, self._positions = [], np.zeros(len(prompts), np.int64)
        return self.extend(prompts, before_chunk)

    @torch.inference_mode()
    def extend(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = lambda: None
    ) -> np.ndarray:
        first, lengths = self._positions, np.array([len(prompt) for prompt in prompts])
        end = int(first.max() + lengths.max())  # padding takes room too
        ids = np.zeros((len(prompts), lengths.max()), np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt  # padding comes last and leaves the memory as it was
        memories, last = self._memories, None
        for start in range(0, ids.shape[1], PREFILL_TOKENS):
            before_chunk()
            chunk = np.arange(start, min(start + PREFILL_TOKENS, ids.shape[1]))
            positions = chunk if (first == 0).all() else first[:, None] + chunk  # [(B,) T]
            inside = chunk < lengths[:, None]  # [B, T]
            mask = None if inside.all() else torch.from_numpy(inside).to(self._device)
            memories = self._with_room(memories, end) if memories else None
            with as_written():  # a prompt's length is met once
                hidden, memories = self.model.hidden(
                    torch.from_numpy(ids[:, chunk]).to(self._device),
                    self.model.phases(positions),
                    memories,
                    mask,
                )
            final = np.clip(lengths - 1 - start, 0, len(chunk) - 1)
            here = hidden[torch.arange(len(prompts)), torch.from_numpy(final)]  # [B, (2,) D]
            ends_here = torch.from_numpy(inside.any(axis=1)).to(self._device)
            ends_here = ends_here.reshape(-1, *[1] * (here.ndim - 1))
            last = here if last is None else torch.where(ends_here, here, last)
        self._memories, self._positions = memories, first + lengths
        self._replayed = None
        return self._read(self._logits(last))

    @torch.inference_mode()
    def step(self, tokens: np.ndarray) -> np.ndarray:
        phases = self.model.phases(self._positions[:, None])
        ids = torch.from_numpy(np.asarray(tokens, np.int64)[:, None]).to(self._device)
        self._positions = self._positions + 1
        self._memories = self._with_room(self._memories, int(self._positions.max()))
        with contextlib.nullcontext() if self._compiled else as_written():
            if self._may_replay and self._replayed is None:
                self._record(ids, phases)
            if self._replayed is not None:
                return self._read(self._replayed(ids, phases))
            logits, self._memories = self._next(ids, phases, self._memories)
            return self._read(logits)

    def _next(
        self, ids: Tensor, phases: Tensor, memories: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits after a token of each text, `[B, V]`, and the memories after it."""
        hidden, memories = self.model.hidden(ids, phases, memories)
        return self._logits(hidden[:, -1]), memories

    def _record(self, ids: Tensor, phases: Tensor) -> None:
        """Have the steps to come replay one; where it cannot be recorded, they run one by one."""
        try:
            self._replayed = Replayed(self._next, ids, phases, self._memories)
            self._memories = self._replayed.memories
        except RuntimeError as error:
            self._may_replay = False
            compilers.note(f"decoding without a CUDA graph, slower: {compilers.reason(error)}")

    def _logits(self, hidden: Tensor) -> Tensor:
        x, table = self.model.embedding.head(hidden)
        return (fused_product if self._compiled else product)(x, table).float()

    @staticmethod
    def _read(logits: Tensor) -> np.ndarray:
        return distributed.agreed(logits).cpu().numpy()

    def _with_room(self, memories: list[Tensor], tokens: int) -> list[Tensor]:
        """The memories with room for so many tokens; only a transformer's ever have to grow."""
        shapes = state_shapes(self.model.config, len(memories[0]), room(tokens)).values()
        return [_grown(memory, shape) for memory, shape in zip(memories, shapes, strict=True)]

    def state(self) -> dict[str, np.ndarray]:
        tokens = int(self._positions.max(initial=0))
        shapes = state_shapes(self.model.config, len(self._positions), tokens)
        memories = {
            name: memory[tuple(map(slice, shape))].cpu().numpy().copy()
            for (name, shape), memory in zip(shapes.items(), self._memories, strict=True)
        }
        return memories | {"positions": self._positions}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        arrays = checked_state(self.model.config, state)
        self._memories = [torch.from_numpy(array).to(self._device) for array in arrays]
        self._positions = np.asarray(state["positions"], np.int64)
        self._replayed = None


class TorchBackend:
    """PyTorch on this machine's CUDA GPU, MPS or CPU, see `mlx_pam.backend.Backend`."""

    name = "torch"
    forms = tuple(FORMS)
    Learner = Learner
    Decoder = Decoder

    def __init__(self, parallel: str | None = None):
        together = parallel is not None and processes.count() > 1
        if together:
            distributed.join()
        self.team = distributed.Team() if together else processes.Alone()
        self._parallel = parallel if together else None

    @property
    def device(self) -> str:
        return best_device().type

    @cached_property
    def description(self) -> str:
        device = best_device()
        where = "MPS" if device.type == "mps" else f"CPU, {torch.get_num_threads()} threads"
        where = f"{where} ({platform.machine()})"
        if device.type == "cuda":
            where = f"CUDA ({torch.cuda.get_device_name(device)})"
        if self._parallel:
            where = f"{where}, {distributed.size()} processes ({self._parallel})"
        return f"PyTorch {torch.__version__} on {where}"

    def build(
        self, config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None, seed: int = 0
    ) -> nn.Module:
        model = build_model(config)
        if self._parallel == "fsdp":
            distributed.shard(model, best_device())
        else:
            model.to(best_device())
        set_weights(model, initial_weights(config, seed) if weights is None else weights)
        return model

    def weights(self, model: nn.Module) -> dict[str, np.ndarray]:
        return named_weights(model)

    def retrieve_with_gradients(
        self, inputs: Sequence[np.ndarray], cotangents: Sequence[np.ndarray], form: str, dtype: str
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        device = best_device()

        def tensor(x: np.ndarray, dtype: str = "float32") -> Tensor:
            return torch.from_numpy(np.array(x, np.float32)).to(device, DTYPES[dtype])

        q, k, v, log_decay, state = inputs
        leaves = [*(tensor(x, dtype) for x in (q, k, v)), tensor(log_decay), tensor(state)]
        for leaf in leaves:
            leaf.requires_grad_()
        outputs = retrieve(*leaves, form=form)
        dy, dstate = cotangents
        gradients = torch.autograd.grad(outputs, leaves, [tensor(dy, dtype), tensor(dstate)])
        return [to_numpy(x) for x in outputs], [to_numpy(x) for x in gradients]

    def leave_thread(self) -> None:
        """PyTorch needs nothing here."""

    def memory_bytes(self) -> int:
        if self.device == "cuda":
            return torch.cuda.get_device_properties(best_device()).total_memory
        if self.device == "mps":
            return torch.mps.recommended_max_memory()
        return host_memory.total_bytes()

    def limit_memory(self, limit: int) -> None:
        """On a GPU what would go beyond the limit fails; on a CPU nothing does."""
        if self.device == "cpu":
            return
        library = torch.cuda if self.device == "cuda" else torch.mps
        library.set_per_process_memory_fraction(min(1.0, limit / self.memory_bytes()))

    def peak_memory(self) -> int:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return host_memory.peak_bytes()


def _grown(memory: Tensor, shape: tuple[int, ...]) -> Tensor:
    shape = tuple(map(max, memory.shape, shape))
    if memory.shape == shape:
        return memory
    larger = memory.new_zeros(shape)
    larger[tuple(map(slice, memory.shape))] = memory
    return larger
