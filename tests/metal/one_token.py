"""Models for the tests of decoding: small, and with no weight at a value that would hide it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_pam.arrays import DTYPES
from mlx_pam.backend import get_backend
from mlx_pam.config import MemoryConfig, PAMConfig, SAMConfig
from mlx_pam.models.memory_lm import MemoryLM
from mlx_pam.parameters import parameter_table

MLX = get_backend("mlx")

# the widths of the 5m model: no multiples of 32
PAM_5M = {"dim": 44, "num_heads": 2, "head_dim": 16, "num_layers": 1, "vocab_size": 61}
SAM_5M = PAM_5M | {"head_dim": 8}
CONFIGS: dict[str, MemoryConfig] = {
    "PAM": PAMConfig(**PAM_5M),
    "PAM, a gate per channel": PAMConfig(**PAM_5M, protect="channel"),
    "SAM": SAMConfig(**SAM_5M),
    "SAM, SwiGLU, a gate per channel": SAMConfig(**SAM_5M, gated_unit="swiglu", protect="channel"),
}


def random_weights(config: MemoryConfig, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Every weight by name, as the type holds it; norms, biases, gates and alphas random too."""
    weights = {}
    for name, parameter in parameter_table(config).items():
        random = np.random.default_rng([3, len(weights)])
        value = parameter.draw(random)
        if parameter.kind not in ("matrix", "embedding"):
            value = value + 0.3 * random.standard_normal(parameter.shape)
        if "decay.bias" in name or "protect.bias" in name:
            value = random.normal(size=parameter.shape)  # gates that are neither open nor shut
        rounded = mx.array(np.float32(value)).astype(DTYPES[dtype])
        weights[name] = np.array(rounded.astype(mx.float32))
    return weights


def model_of(
    config: MemoryConfig, weights: dict[str, np.ndarray], dtype: str = "float32"
) -> MemoryLM:
    model = MLX.build(config, weights)
    model.set_dtype(DTYPES[dtype])
    return model


def prompts(texts: int, config: MemoryConfig) -> list[list[int]]:
    """Of 5, 6, ... tokens."""
    draw = np.random.default_rng(texts)
    return [draw.integers(config.vocab_size, size=5 + row).tolist() for row in range(texts)]


@contextmanager
def ordinary() -> Iterator[None]:
    """Decoding without kernels, as any text is read."""
    os.environ["MLX_PAM_FORM"] = "recurrent"
    try:
        yield
    finally:
        del os.environ["MLX_PAM_FORM"]


def begun(model: MemoryLM, texts: int) -> tuple[Any, np.ndarray]:
    """A decoder that has read prompts, and the likeliest token of each."""
    decoder = MLX.Decoder(model)
    with ordinary():
        logits = decoder.prefill(prompts(texts, model.config))
    return decoder, logits.argmax(axis=-1)


def copied(decoder: Any, model: MemoryLM) -> Any:
    """A decoder of this model that goes on from where another stands."""
    other = MLX.Decoder(model)
    other.restore(decoder.state())
    return other


def one_step(
    config: MemoryConfig, texts: int, dtype: str = "float32"
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits and state after one token of each text, in kernels."""
    model = model_of(config, random_weights(config, dtype), dtype)
    decoder, tokens = begun(model, texts)
    return decoder.step(tokens), decoder.state()
