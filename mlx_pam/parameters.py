"""What a model's weights are: every name, shape and kind, and how each is drawn at the start.

Both backends build from this table, so one seed gives both the same network, a checkpoint is
checked against it, and no fixed table (rotary angles, masks) can become a parameter by accident.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlx_pam.config import MemoryConfig, ModelConfig, SAMConfig, TransformerConfig

Draw = Callable[[np.random.Generator], np.ndarray]
Kind = Literal["matrix", "embedding", "norm", "bias", "gate", "scale"]

DECAY_BIAS = -4.0  # b_dt: dt near 0.018, a memory of some 55 tokens
PROTECT_BIAS = -3.0  # b_p: p near 0.047
TAP_STD = 0.02  # of the taps of a convolution around 1, 1/2, 1/4, ...
LOGIT_STD = 0.2  # at the start, so that the loss is ln V + LOGIT_STD^2 / 2


@dataclass(frozen=True)
class Parameter:
    """One trainable array: its shape, what it is, and how it is drawn."""

    shape: tuple[int, ...]
    kind: Kind
    draw: Draw

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def parameter_table(config: ModelConfig) -> dict[str, Parameter]:
    """Every trainable array by its name in a checkpoint, in the order of the network."""
    if isinstance(config, TransformerConfig):
        return _transformer_table(config)
    return _memory_table(config)


def _memory_table(c: MemoryConfig) -> dict[str, Parameter]:
    table = {
        "embedding.weight": _embedding(c, c.planes),
        "embedding_norm.scale": _norm(c),
    }
    parts = {"unit": _unit, "memory": _memory, "attention": _attention}
    for i, block in enumerate(c.blocks):
        for part in block:
            table |= {f"layers.{i}.{name}": value for name, value in parts[part](c).items()}
    return table | {
        "head.weight": _linear(c.dim, c.dim, planes=c.planes),
        "head_norm.scale": _norm(c),
    }


def _unit(c: MemoryConfig) -> dict[str, Parameter]:
    table = {
        "unit_norm.scale": _norm(c),
        "unit.up_gate.weight": _linear(c.hidden_dim, c.dim, parts=2, planes=c.planes),
        "unit.activation.bias": _constant((c.hidden_dim,), 0.0, "bias"),
        "unit.down.weight": _linear(c.dim, c.hidden_dim, planes=c.planes),
        "alpha_cgu": _constant((), c.alpha_cgu_init, "scale"),
    }
    if isinstance(c, SAMConfig) and c.gated_unit == "swiglu":
        del table["unit.activation.bias"]
    return table


def _memory(c: MemoryConfig) -> dict[str, Parameter]:
    features = math.prod(c.planes) * c.dim  # numbers per token that the decay looks at
    gates = c.memory_dim if c.protect == "channel" else c.num_heads
    table = {
        "memory_norm.scale": _norm(c),
        "memory.qkv.weight": _linear(c.memory_dim, c.dim, parts=3, planes=c.planes),
        "memory.out.weight": _linear(c.dim, c.memory_dim, planes=c.planes),
    }
    if c.fixed_decay is None:
        table["memory.decay.weight"] = _gate(c.num_heads, features)
        table["memory.decay.bias"] = _constant((c.num_heads,), DECAY_BIAS, "bias")
    if c.protect != "none":
        table["memory.protect.weight"] = _gate(gates, c.dim)
        table["memory.protect.bias"] = _constant((gates,), PROTECT_BIAS, "bias")
    if c.conv_width > 1:
        table["memory.convolution.taps"] = _taps(c)
    if c.query_scale is not None:
        table["memory.query_scale"] = _constant((c.num_heads,), c.query_scale, "scale")
    return table | {"alpha_pam": _constant((), c.alpha_pam_init, "scale")}


def _attention(c: MemoryConfig) -> dict[str, Parameter]:
    return {
        "attention_norm.scale": _norm(c),
        "attention.qkv.weight": _linear(c.memory_dim, c.dim, parts=3, planes=c.planes),
        "attention.out.weight": _linear(c.dim, c.memory_dim, planes=c.planes),
        "alpha_attention": _constant((), c.alpha_attention_init, "scale"),
    }


def _transformer_table(c: TransformerConfig) -> dict[str, Parameter]:
    """At first the 2L branches add up to about the embedding's size, which keeps tokens apart."""
    gain = _embedding_std(c) / (2 * c.num_layers) ** 0.5
    table = {"embedding.weight": _embedding(c)}
    for i in range(c.num_layers):
        layer = {
            "attention_norm.scale": _norm(c),
            "attention.qkv.weight": _linear(c.memory_dim, c.dim, parts=3),
            "attention.out.weight": _linear(c.dim, c.memory_dim, gain=gain),
            "unit_norm.scale": _norm(c),
            "unit.up_gate.weight": _linear(c.hidden_dim, c.dim, parts=2),
            "unit.down.weight": _linear(c.dim, c.hidden_dim, gain=gain),
        }
        table |= {f"layers.{i}.{name}": parameter for name, parameter in layer.items()}
    return table | {"head_norm.scale": _norm(c)}


def parameter_count(config: ModelConfig) -> int:
    """Trainable real numbers of the model; a complex one counts as two."""
    return sum(parameter.size for parameter in parameter_table(config).values())


def initial_weights(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """The weights before training, float32, a pure function of configuration and seed.

    Each array has a random stream of its own, named after it, so that one more array changes no
    other.
    """
    return {
        name: np.asarray(parameter.draw(_stream(seed, name)), np.float32, order="C")
        for name, parameter in parameter_table(config).items()
    }


def _stream(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def block_of(name: str) -> str:
    """Which part of the network an array is of: `embedding`, `layers.3`, `head`, with its norms."""
    first, *rest = name.split(".")
    return f"{first}.{rest[0]}" if first == "layers" else first.removesuffix("_norm")


def is_decayed(parameter: Parameter) -> bool:
    """Whether weight decay on matrices reaches it: no norm, bias, gate or residual scale."""
    return parameter.kind in ("matrix", "embedding")


def _linear(
    m: int, n: int, parts: int = 1, planes: tuple[int, ...] = (), gain: float = 1.0
) -> Parameter:
    """`parts` maps from n channels to m, stacked by rows."""
    return Parameter(
        (*planes, parts * m, n),
        "matrix",
        lambda rng: gain * _semi_unitary(rng, m, n, parts, bool(planes)),
    )


def _embedding(c: ModelConfig, planes: tuple[int, ...] = ()) -> Parameter:
    shape = (c.vocab_size, *planes, c.dim)
    return Parameter(shape, "embedding", _normal(shape, _embedding_std(c)))


def _embedding_std(c: ModelConfig) -> float:
    return LOGIT_STD / c.dim**0.5


def _norm(c: ModelConfig) -> Parameter:
    return _constant((c.dim,), 1.0, "norm")


def _constant(shape: tuple[int, ...], value: float, kind: Kind) -> Parameter:
    return Parameter(shape, kind, lambda rng: np.full(shape, value))


def _normal(shape: tuple[int, ...], std: float) -> Draw:
    return lambda rng: std * rng.standard_normal(shape, np.float32)


def _gate(outputs: int, inputs: int) -> Parameter:
    """Small at first, so that a gate starts near its bias and still sees each input differently."""
    return Parameter((outputs, inputs), "gate", _normal((outputs, inputs), 0.1 / inputs**0.5))


def _taps(c: MemoryConfig) -> Parameter:
    """About 2^-j for the token j places back, each channel a little differently."""
    shape = (c.conv_width, 3 * c.num_heads, *c.planes, c.head_dim)

    def draw(rng: np.random.Generator) -> np.ndarray:
        taps = TAP_STD * rng.standard_normal(shape, np.float32)
        real = taps[:, :, 0] if c.planes else taps  # a view
        real += 0.5 ** np.arange(c.conv_width).reshape(-1, *[1] * (real.ndim - 1))
        return taps

    return Parameter(shape, "scale", draw)


def _semi_unitary(
    rng: np.random.Generator, m: int, n: int, parts: int, complex_valued: bool
) -> np.ndarray:
    """`parts` semi-unitary m x n maps, stacked by rows, with gain sqrt(max(1, m/n)).

    A white input keeps its RMS through each. The Haar measure takes the phases of R's diagonal out
    of the QR.
    """
    maps = []
    for _ in range(parts):
        tall = rng.standard_normal((max(m, n), min(m, n)), np.float32)
        if complex_valued:
            tall = tall + np.complex64(1j) * rng.standard_normal(tall.shape, np.float32)
        q, r = np.linalg.qr(tall)
        q = q * (np.diagonal(r) / np.abs(np.diagonal(r)))
        maps.append((q if m >= n else q.conj().T) * max(1.0, m / n) ** 0.5)
    stacked = np.concatenate(maps)
    return np.stack([stacked.real, stacked.imag]) if complex_valued else stacked
