"""What a variant does: a workload prepares itself outside the clock and repeats one step inside it.

Each runs in a process of its own and imports no array library but its variant's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mlx_pam.benchmarks import flops
from mlx_pam.benchmarks.forms import Operator
from mlx_pam.benchmarks.libraries import Facts, Library, Unavailable
from mlx_pam.config import PRESETS, ModelConfig, PAMConfig, recipe_for
from mlx_pam.decoder_state import state_shapes
from mlx_pam.parameters import initial_weights, parameter_count

LEARNING_RATE = 1e-4  # the text is random: it is the work that counts
FLOAT32 = 4  # bytes
STREAM_BYTES = 1 << 29  # far more than any cache holds


class Workload(Protocol):
    """One step, repeated for as long as a turn lasts."""

    unit: str
    """What is counted, per second."""
    description: str
    """The library, version and device that do the work."""
    facts: Facts
    """What the record says about it besides the speed."""

    def prepare(self, **turn: Any) -> Facts:
        """Get ready for a turn, outside the clock; facts of this turn."""

    def step(self) -> float:
        """Do the work once; how much it was."""

    def synchronise(self) -> None:
        """Wait until the device has done all that it was asked for."""

    def rest(self) -> None:
        """Give the memory of a turn back, for the processes that take the next ones."""

    def peak_bytes(self) -> int:
        """The most memory held: by the device, or on a CPU by the process."""


class Training(Library):
    """Whole training steps of a model: loss, gradient, clipping, AdamW."""

    unit = "tokens/s"

    def __init__(
        self, *, model: str, scale: str, batch_size: int, seq_len: int, backend: str, dtype: str
    ) -> None:
        super().__init__(backend)
        config = preset("pam" if model == "naive" else model, scale)
        weights, recipe = initial_weights(config), recipe_for("tuned", "pam", scale)
        if model == "naive":
            from mlx_pam.benchmarks.naive import NaiveLearner, NaivePAM

            self._learner = NaiveLearner(NaivePAM(config, weights), recipe)
        else:
            self._learner = self.backend.Learner(self.backend.build(config, weights), recipe, dtype)
        shape = (batch_size, seq_len + 1)
        self._batch = np.random.default_rng(0).integers(0, config.vocab_size, shape, np.int32)
        self._tokens = batch_size * seq_len
        self.facts |= _counts(model, config, seq_len, backend)
        self.facts["parameters"] = parameter_count(config)

    def step(self) -> float:
        loss = self._learner.gradient(self._batch, self._tokens) / self._tokens
        self._learner.update(LEARNING_RATE)
        self.facts.setdefault("first_loss", loss)  # equal in all formulations of one model
        return self._tokens


class Decoding(Library):
    """One token after another for one text, behind a context of any length."""

    unit = "tokens/s"

    def __init__(self, *, model: str, scale: str, backend: str, tokens: int = 1_000_000) -> None:
        super().__init__(backend)
        self._config = preset(model, scale)
        built = self.backend.build(self._config, initial_weights(self._config))
        self._decoder = self.backend.Decoder(built, tokens)  # compiled for so many
        self._token = np.zeros(1, np.int64)
        self.facts["parameters"] = parameter_count(self._config)
        if self.is_mlx:
            from mlx_pam.benchmarks.dispatches import of_a_token

            self.facts["kernels"] = of_a_token(self._config)

    def prepare(self, *, context: int) -> Facts:
        """Put a state of that many tokens in place, its numbers random: no text has to be read."""
        state, size = {}, 0
        block = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
        for name, shape in state_shapes(self._config, 1, context).items():
            state[name] = np.resize(block, shape)
            size += state[name].nbytes
        self._decoder.restore(state | {"positions": np.array([context])})
        self.step()  # makes room in a cache
        passes = 2 if isinstance(self._config, PAMConfig) else 1  # a memory is read and written
        weights = FLOAT32 * parameter_count(self._config)  # the tied head reads the whole table
        return {"state_bytes": size, "bytes_per_token": weights + passes * size}

    def step(self) -> float:
        self._decoder.step(self._token)
        return 1


class Loss(Library):
    """The loss behind a tied head, forward and backward, by one of several functions."""

    unit = "tokens/s"

    def __init__(
        self, *, function: str, scale: str, batch_size: int, seq_len: int, dtype: str,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__("torch")
        import torch
        from torch.nn import functional as F

        from mlx_pam.torch.ops.loss import summed_loss
        from mlx_pam.torch.runtime import best_device

        config, self._tokens = preset("pam", scale), batch_size * seq_len
        rng = np.random.default_rng(0)

        def tensor(rows: int, std: float) -> torch.Tensor:
            numbers = std * rng.standard_normal((rows, 2 * config.dim), np.float32)
            return torch.from_numpy(numbers).to(best_device()).requires_grad_()

        self._x, self._table = tensor(self._tokens, 1.0), tensor(config.vocab_size, 0.02)
        targets = rng.integers(0, config.vocab_size, self._tokens)
        self._targets = torch.from_numpy(targets).to(best_device())
        self._dtype = getattr(torch, dtype)

        def plain(x, table, targets):
            return F.cross_entropy((x @ table.T).float(), targets, reduction="sum")

        def linear_cross_entropy(x, table, targets):
            method = None if "batch_chunk_size" in options else "auto"
            chunks = torch.nn.LinearCrossEntropyOptions(chunking_method=method, **options)
            return F.linear_cross_entropy(x, table, targets, reduction="sum", options=chunks)

        if function == "linear_cross_entropy" and not hasattr(F, function):
            raise Unavailable(f"PyTorch {torch.__version__} has no {function}")
        functions = {f.__name__: f for f in (summed_loss, plain, linear_cross_entropy)}
        self._function = functions[function]

    def step(self) -> float:
        x, table = self._x.to(self._dtype), self._table.to(self._dtype)
        loss = self._function(x, table, self._targets)
        loss.backward()
        self._x.grad = self._table.grad = None
        self.facts.setdefault("first_loss", loss.item() / self._tokens)
        return self._tokens


class Product(Library):
    """One large square matrix product: the rate of operations that the machine has."""

    unit = "FLOP/s"

    def __init__(self, *, backend: str, dtype: str, size: int) -> None:
        super().__init__(backend)
        pair = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
        self._a, self._b = (self.array(x, dtype) for x in pair)
        self._operations = 2 * size**3

    def step(self) -> float:
        self.start(self._a @ self._b)
        return self._operations


class Stream(Library):
    """A large array copied, or read and summed: the bandwidth that the machine has."""

    unit = "bytes/s"

    def __init__(self, *, copy: bool, backend: str = "torch", size: int = STREAM_BYTES) -> None:
        super().__init__(backend)
        source = self.array(np.ones(size // FLOAT32, np.float32))
        if copy and not self.is_mlx:
            target = self.array(np.zeros(size // FLOAT32, np.float32))
            self._move = lambda: target.copy_(source)
        else:
            self._move = (lambda: -source) if copy else source.sum  # MLX copies only to change
        self._bytes = size * (2 if copy else 1)

    def step(self) -> float:
        self.start(self._move())
        return self._bytes


class Chain(Library):
    """Small kernels, each waiting for the one before: how long it takes to start one."""

    unit = "kernels/s"
    LENGTH = 500

    def __init__(self, *, backend: str) -> None:
        super().__init__(backend)
        self._x = self.array(np.ones(64, np.float32))

    def step(self) -> float:
        x = self._x
        for _ in range(self.LENGTH):
            x = x + self._x
        self.start(x)
        return self.LENGTH


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "train": Training,
    "decode": Decoding,
    "loss": Loss,
    "product": Product,
    "stream": Stream,
    "chain": Chain,
    "operator": Operator,
}


def preset(family: str, scale: str) -> ModelConfig:
    """The preset, or the reason why there is none."""
    if family not in PRESETS:
        raise Unavailable(f"there is no family {family!r}")
    return PRESETS[family][scale]


def _counts(model: str, config: ModelConfig, seq_len: int, backend: str) -> Facts:
    """Operations of a training step per token, and what they would be with other products."""
    if not isinstance(config, PAMConfig):
        causal = flops.transformer(config, seq_len)
        masked = flops.transformer(config, seq_len, causal=False)
        return {"forward_flops": causal, "flops": 3 * causal["total"],
                "flops_future_masked": 3 * masked["total"]}  # fmt: skip
    if model == "naive":
        square = flops.pam(config, seq_len, chunk=None)
        return {"forward_flops": square, "flops": 3 * square["total"]}
    package = "mlx_pam.torch.ops" if backend == "torch" else "mlx_pam.ops"
    retrieval = importlib.import_module(f"{package}.retrieval")
    chunks = {
        "chunk": retrieval.chunk_size(config.head_dim),
        "chunks_per_span": retrieval.CHUNKS_PER_SPAN,
    }
    four = flops.pam(config, seq_len, **chunks)
    three = flops.pam(config, seq_len, **chunks, products=3)
    return {"forward_flops": four, "flops": 3 * four["total"],
            "flops_three_products": 3 * three["total"]}  # fmt: skip
