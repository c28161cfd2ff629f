"""PAM and SAM are the model that the specification writes down, in values and from any state."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import oracle
import pytest
from mlx.utils import tree_flatten

from mlx_pam.backend import get_backend
from mlx_pam.config import PRESETS, MemoryConfig, PAMConfig, SAMConfig
from mlx_pam.ops.retrieval import FORMS
from mlx_pam.parameters import initial_weights

TOLERANCE = 1e-5  # relative to the largest logit, float32

SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 50}
CONFIGS = {
    "pam, gate per head": PAMConfig(**SIZES),
    "pam, gate per channel": PAMConfig(**SIZES, protect="channel"),
    "pam, other constants": PAMConfig(**SIZES, rotary_base=500.0, norm_eps=0.3, expand=2),
    "sam, relu": SAMConfig(**SIZES),
    "sam, swiglu": SAMConfig(**SIZES, gated_unit="swiglu"),
    "sam, gate per channel": SAMConfig(**SIZES, protect="channel"),
}


def weights_of(config: MemoryConfig) -> dict[str, np.ndarray]:
    """Weights in which nothing is left out: no bias is 0, no scale 1, and the gates are wide."""
    random = np.random.default_rng(8)
    weights = initial_weights(config, seed=1)
    for name, value in weights.items():
        if name.endswith(("scale", "bias", "alpha_cgu", "alpha_pam")):
            noise = random.normal(0, 0.3, value.shape)
        elif ".decay." in name or ".protect." in name:
            noise = random.normal(0, 0.5, value.shape)
        else:
            noise = np.zeros(value.shape)
        weights[name] = (value + noise).astype(np.float32)
    return weights


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("form", ["auto", *FORMS])
def test_logits_are_the_oracles(config, form):
    weights = weights_of(config)
    ids = np.random.default_rng(2).integers(config.vocab_size, size=(2, 70))
    expected = oracle.model_logits(config, weights, ids)
    model = get_backend("mlx").build(config, weights)
    logits, _ = model.forward(mx.array(ids), form=form)
    assert oracle.relative_error(logits, expected) < TOLERANCE


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_gradient_of_every_weight_is_the_slope_of_the_oracle(config):
    """<gradient, u> is the central difference of the oracle's loss along a random u, per array."""
    random = np.random.default_rng(5)
    weights = weights_of(config)
    ids = random.integers(config.vocab_size, size=(2, 7))
    dlogits = random.normal(size=(*ids.shape, config.vocab_size)).astype(np.float32)
    model = get_backend("mlx").build(config, weights)

    def loss(parameters):
        model.update(parameters)
        return (model(mx.array(ids)) * mx.array(dlogits)).sum()

    gradients = dict(tree_flatten(mx.grad(loss)(model.trainable_parameters())))
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        direction = random.normal(size=weights[name].shape)
        direction /= np.linalg.norm(direction)
        step = 1e-7  # short, so that no ReLU turns over on the way
        above, below = (
            np.sum(dlogits * oracle.model_logits(config, weights | {name: moved}, ids))
            for moved in (weights[name] + sign * step * direction for sign in (1, -1))
        )
        slope, norm = (above - below) / (2 * step), np.linalg.norm(np.array(gradient))
        assert norm > 0, name
        error = abs(np.sum(np.array(gradient) * direction) - slope)
        assert error < 1e-4 * (norm + 1), name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_text_in_pieces_from_a_carried_state_is_the_text(config):
    """Positions, decays and memories all go on where the piece before ended."""
    weights = weights_of(config)
    ids = np.random.default_rng(3).integers(config.vocab_size, size=(2, 90))
    expected = oracle.model_logits(config, weights, ids)
    model, state, parts = get_backend("mlx").build(config, weights), None, []
    for piece in np.split(ids, [1, 2, 40, 73], axis=1):
        logits, state = model.forward(mx.array(piece), state)
        parts.append(np.array(logits))
    assert oracle.relative_error(np.concatenate(parts, axis=1), expected) < TOLERANCE


@pytest.mark.parametrize("family", ["pam", "sam"])
def test_the_5m_preset_is_the_oracle(family):
    config = PRESETS[family]["5m"]
    weights = initial_weights(config, seed=3)
    ids = np.random.default_rng(4).integers(config.vocab_size, size=(1, 20))
    expected = oracle.model_logits(config, weights, ids)
    logits = get_backend("mlx").build(config, weights)(mx.array(ids))
    assert oracle.relative_error(logits, expected) < 5e-5  # 24 sublayers of rounding
