"""bfloat16 is a type of products: gradients stay near those of float32, on both backends."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.backend import Backend
from mlx_pam.config import ModelConfig, PAMConfig, SAMConfig, TransformerConfig, recipe_for

# one token makes up half of the text, as a space nearly does in bytes
TOKENS = np.random.default_rng(3).choice(8, (64, 129), p=[0.5, *[0.5 / 7] * 7]).astype(np.int32)
ARCHITECTURE = {"dim": 16, "num_layers": 1, "num_heads": 2, "head_dim": 8, "vocab_size": 8}


def gradient(backend: Backend, config: ModelConfig, dtype: str) -> dict[str, np.ndarray]:
    """The gradient of the mean loss on the text, by name, as AdamW's first moment tells it."""
    recipe = replace(recipe_for("tuned", "pam", "5m"), clip_norm=1e9)
    learner = backend.Learner(backend.build(config, seed=1), recipe, dtype)
    learner.gradient(TOKENS, TOKENS[:, 1:].size)
    learner.update(lr=0.0)
    moments = learner.optimizer()
    return {
        name.removeprefix("exp_avg."): moment / (1 - recipe.betas[0])
        for name, moment in moments.items()
        if name.startswith("exp_avg.")
    }


def errors(backend: Backend, config: ModelConfig) -> dict[str, float]:
    """The relative L2 error of bfloat16's gradient by array."""
    exact, found = (gradient(backend, config, dtype) for dtype in ("float32", "bfloat16"))
    return {
        name: float(np.linalg.norm(found[name] - exact[name]) / np.linalg.norm(exact[name]))
        for name in exact
    }


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (TransformerConfig(**ARCHITECTURE), 0.01),
        (SAMConfig(**ARCHITECTURE), 0.02),
        (PAMConfig(**ARCHITECTURE), 0.1),  # its unit phases g / |g| have slope 1 / |g|
    ],
    ids=["transformer", "sam", "pam"],
)
def test_every_gradient_in_bfloat16_is_near_that_of_float32(
    backend: Backend, config: ModelConfig, limit: float
) -> None:
    off = {name: error for name, error in errors(backend, config).items() if error > limit}
    assert not off


@pytest.mark.parametrize("family", [PAMConfig, SAMConfig, TransformerConfig])
def test_a_model_of_bfloat16_weights_reads_a_text(backend: Backend, family: type) -> None:
    """Cast as each library casts, by `set_dtype` or `to`, it has nearly the same logits."""
    model = backend.build(family(**ARCHITECTURE), seed=1)
    if backend.name == "mlx":
        ids = mx.array(TOKENS[:1, :9])
        exact = np.array(model(ids))
        model.set_dtype(mx.bfloat16)
        found = np.array(model(ids).astype(mx.float32))
    else:
        torch = pytest.importorskip("torch")
        ids = torch.from_numpy(TOKENS[:1, :9]).long()
        with torch.no_grad():
            outputs = model(ids), model.to(torch.bfloat16)(ids)
        exact, found = ((y if torch.is_tensor(y) else y[0]).float().numpy() for y in outputs)
    assert np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)
