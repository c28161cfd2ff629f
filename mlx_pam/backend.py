"""The one door to an array library: everything above this file works through it on NumPy arrays."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from mlx_pam import blas, processes
from mlx_pam.config import ModelConfig, Recipe, require, require_choice
from mlx_pam.errors import BackendError

Weights = dict[str, np.ndarray]
T = TypeVar("T")


class Learner(Protocol):
    """A model in training: gradients are accumulated, looked at, and then applied or dropped.

    Made with `deterministic`, it sums gradients in a fixed order on a GPU too.
    Where several processes share a run, each makes every call with the same arguments and gets the
    same answer; `weights` and `optimizer` are answered in the main process.
    """

    model: Any

    def gradient(self, batch: np.ndarray, total_tokens: int) -> float:
        """Add the gradient of summed loss / total_tokens on windows `[B, T+1]`; the sum in nats."""

    def gradient_norm(self) -> float:
        """Global norm of the accumulated gradient, before clipping."""

    def diagnostics(self, windows: np.ndarray) -> dict[str, float]:
        """What explains the accumulated gradient, block by block; nothing is changed by it.

        `layers.{i}.{statistic}` of `models.diagnostics.activations`, on windows `[B, T+1]`, and
        norms before clipping, `layers.{i}.grad_norm`, `embedding.grad_norm`, `head.grad_norm`,
        whose squares add up to that of `gradient_norm`.
        """

    def update(self, lr: float, norm: float | None = None) -> None:
        """Clip, take one AdamW step, and clear the accumulated gradient.

        norm: what `gradient_norm` says of it, where that is known already.
        """

    def discard(self) -> None:
        """Clear the accumulated gradient without a step."""

    def evaluate(self, batch: np.ndarray, mask: np.ndarray) -> float:
        """Summed loss in nats over the targets of `[B, T+1]` where mask `[B, T]` is True."""

    def weights(self) -> Weights:
        """The model's weights by name, float32."""

    def optimizer(self) -> Weights:
        """`step`, and `exp_avg.NAME` and `exp_avg_sq.NAME` for every weight."""

    def restore(
        self, weights: Mapping[str, np.ndarray], optimizer: Mapping[str, np.ndarray]
    ) -> None:
        """Take up what `weights` and `optimizer` returned, here or in another backend."""


class Decoder(Protocol):
    """A batch of texts being continued; the state of a memory has constant size."""

    def prefill(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = ...
    ) -> np.ndarray:
        """Read non-empty prompts of any lengths from the start; logits `[B, V]` after each.

        before_chunk: called before each chunk of the prompts; what it raises ends the prefill.
        """

    def extend(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = ...
    ) -> np.ndarray:
        """Read as `prefill` does, each prompt after what its row has read so far."""

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Read one token per row, `[B]`; logits `[B, V]`."""

    def state(self) -> Weights:
        """Positions, and memories or caches, by name; see `mlx_pam.decoder_state`."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state` returned."""


class Team(Protocol):
    """The processes that share a run; every one of them makes every call, in the same order."""

    def any_of(self, flag: bool) -> bool:
        """Whether the flag is True in any process."""

    def on_main(self, work: Callable[[], T]) -> T:
        """Run work() in the main process alone; return its result, or raise its error, in all.

        The result is None, a path, or what JSON can hold.
        """

    def main_first(self, work: Callable[[], T]) -> T:
        """work() in each process; the others begin when the main one has done it."""

    def leave(self) -> None:
        """Part, when all is done: the last call."""


class Backend(Protocol):
    """What an array library offers to the rest of the package."""

    name: str
    description: str
    """One line for the start of a run: library, version, device, and the BLAS on a CPU."""
    device: Literal["metal", "cuda", "mps", "cpu"]
    forms: tuple[str, ...]
    """Forms of retrieval that run here."""
    team: Team
    Learner: Callable[[Any, Recipe, str, bool], Learner]
    """(model, recipe, type of the arithmetic, recompute): blocks anew in the backward pass."""
    Decoder: Callable[[Any, int], Decoder]
    """(model, tokens that are expected): a long text is worth compiling for."""

    def build(
        self, config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None, seed: int = 0
    ) -> Any:
        """A model in the library's own idiom, its weights given or drawn from the seed."""

    def weights(self, model: Any) -> Weights:
        """A model's weights by name, float32."""

    def leave_thread(self) -> None:
        """Called by a thread other than the main one that has computed, as the last it does."""

    def retrieve_with_gradients(
        self, inputs: Sequence[np.ndarray], cotangents: Sequence[np.ndarray], form: str, dtype: str
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(y, S_T) of `retrieve` on (q, k, v, log_decay, S_0), and all five gradients of
        <dy, y> + <dS, S_T>."""

    def memory_bytes(self) -> int:
        """What the process can take of the memory that arrays lie in."""

    def limit_memory(self, limit: int) -> None:
        """Have the library keep to so many bytes, as far as it can."""

    def peak_memory(self) -> int:
        """Most bytes held so far: on CUDA by arrays, elsewhere by the process."""


def get_backend(name: str = "auto", parallel: str | None = None) -> Backend:
    """The backend of that name; `auto` takes the best that this machine has.

    parallel: "ddp" or "fsdp", how the processes that a launcher started share a run; by default
    each works by itself. Raises `BackendError` when a backend that was asked for by name is not
    installed, or its processes were started by the launcher of the other one.
    """
    require_choice("backend", name, ("auto", "mlx", "torch"))
    if (_automatic() if name == "auto" else name) == "torch":
        _require_installed("torch", "pip install 'mlx_pam[torch]'")
        if parallel:
            _require_launcher("torchrun", "torch", "mlx")
        from mlx_pam.torch.runtime import TorchBackend

        return TorchBackend(parallel)
    _require_installed("mlx", "pip install mlx (on Linux: 'mlx[cpu]')")
    if parallel:
        _require_launcher("mlx.launch", "mlx", "torch")
        whole = parallel == "ddp" or processes.count() == 1
        require(
            whole, "parallel", "ddp with backend mlx: each process has the whole model", parallel
        )
    blas.preload()  # before anything imports mlx
    from mlx_pam.runtime import MLXBackend

    return MLXBackend(parallel)


def _automatic() -> str:
    """MLX where Metal is; elsewhere torch, for CUDA and as the faster one on a CPU; else MLX.

    Where several processes were started together, the library that their launcher is of.
    """
    launcher = processes.started_by()
    if launcher:
        return {"torchrun": "torch", "mlx.launch": "mlx"}[launcher]
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    if apple and importlib.util.find_spec("mlx"):
        return "mlx"
    return "torch" if importlib.util.find_spec("torch") else "mlx"


def _require_launcher(own: str, library: str, other: str) -> None:
    """Raise `BackendError` where several processes were started by another library's launcher."""
    launcher = processes.started_by()
    if launcher not in (None, own):
        raise BackendError(
            f"the processes of backend {library} must be started by {own}, got {launcher}: start "
            f"them with {own}, or take --backend {other}"
        )


def _require_installed(library: str, remedy: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise BackendError(f"backend {library} is not installed: {remedy}")
