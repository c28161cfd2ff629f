"""Every family is the model that the specification writes down, in values and gradients."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from live_model import gradients, logits, numpy, tensor
from varied import VARIED

from mlx_pam.backend import get_backend
from mlx_pam.config import PRESETS, ModelConfig, PAMConfig, SAMConfig, TransformerConfig
from mlx_pam.ops.retrieval import FORMS
from mlx_pam.parameters import initial_weights

EPS = np.finfo(np.float32).eps
SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 50}
MEMORIES = {
    "pam, gate per head": PAMConfig(**SIZES),
    "pam, gate per channel": PAMConfig(**SIZES, protect="channel"),
    "pam, other constants": PAMConfig(**SIZES, rotary_base=500.0, norm_eps=0.3, expand=2),
    "sam, relu": SAMConfig(**SIZES),
    "sam, swiglu": SAMConfig(**SIZES, gated_unit="swiglu"),
    "sam, gate per channel": SAMConfig(**SIZES, protect="channel"),
    "pam, smooth phase": PAMConfig(**SIZES, phase_eps=0.3),
    "pam, a token resets": PAMConfig(**SIZES, reset_token=40),
    "sam, a token resets": SAMConfig(**SIZES, reset_token=40),
    **VARIED,
}
TRANSFORMERS = {
    "transformer": TransformerConfig(**SIZES),
    "transformer, other constants": TransformerConfig(**SIZES, rotary_base=500.0, norm_eps=0.3),
}
CONFIGS = MEMORIES | TRANSFORMERS

every_model = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_memory = pytest.mark.parametrize("config", MEMORIES.values(), ids=MEMORIES)


def tolerance(config: ModelConfig) -> float:
    """Relative to the largest logit, float32."""
    takes_phases = getattr(config, "qk_norm", None) == "phase"  # of numbers near 0 too
    return 1e-4 if takes_phases else 1e-5


def weights_of(config: ModelConfig) -> dict[str, np.ndarray]:
    """Weights in which nothing is left out: no bias is 0, no scale 1, and the gates are wide."""
    random = np.random.default_rng(8)
    weights = initial_weights(config, seed=1)
    for name, value in weights.items():
        if name.endswith(("scale", "bias", "taps")) or ".alpha_" in name:
            noise = random.normal(0, 0.3, value.shape)
        elif ".decay." in name or ".protect." in name:
            noise = random.normal(0, 0.5, value.shape)
        else:
            noise = np.zeros(value.shape)
        weights[name] = (value + noise).astype(np.float32)
    return weights


@every_model
def test_logits_are_the_oracles(backend, config):
    weights = weights_of(config)
    ids = np.random.default_rng(2).integers(config.vocab_size, size=(2, 70))
    expected = oracle.model_logits(config, weights, ids)
    found = logits(backend, backend.build(config, weights), ids)
    assert oracle.relative_error(found, expected) < tolerance(config)


@every_memory
@pytest.mark.parametrize("form", FORMS)
def test_logits_are_the_oracles_in_every_form_of_the_memory(backend, config, form):
    weights = weights_of(config)
    ids = np.random.default_rng(2).integers(config.vocab_size, size=(2, 70))
    expected = oracle.model_logits(config, weights, ids)
    found = logits(backend, backend.build(config, weights), ids, form=form)
    assert oracle.relative_error(found, expected) < tolerance(config)


@every_model
def test_the_gradient_of_every_weight_is_the_slope_of_the_oracle(backend, config):
    """<gradient, u> is the central difference of the oracle's loss along a random u, per array."""
    random = np.random.default_rng(5)
    weights = weights_of(config)
    ids = random.integers(config.vocab_size, size=(2, 7))
    dlogits = random.normal(size=(*ids.shape, config.vocab_size)).astype(np.float32)
    found = gradients(backend, backend.build(config, weights), ids, dlogits)
    assert found.keys() == weights.keys()
    for name, gradient in found.items():
        direction = random.normal(size=weights[name].shape)
        direction /= np.linalg.norm(direction)
        step = 1e-7  # short, so that no ReLU turns over on the way
        above, below = (
            np.sum(dlogits * oracle.model_logits(config, weights | {name: moved}, ids))
            for moved in (weights[name] + sign * step * direction for sign in (1, -1))
        )
        slope, norm = (above - below) / (2 * step), np.linalg.norm(gradient)
        assert norm > 0, name
        error = abs(np.sum(gradient * direction) - slope)
        assert error < 10 * tolerance(config) * (norm + 1), name


@every_memory
def test_a_text_in_pieces_from_a_carried_state_is_the_text(backend, config):
    """Positions, decays and memories all go on where the piece before ended."""
    weights = weights_of(config)
    ids = np.random.default_rng(3).integers(config.vocab_size, size=(2, 90))
    expected = oracle.model_logits(config, weights, ids)
    model, state, parts = backend.build(config, weights), None, []
    for piece in np.split(ids, [1, 2, 40, 73], axis=1):
        found, state = model.forward(tensor(backend, model, piece), state)
        parts.append(numpy(found))
    assert oracle.relative_error(np.concatenate(parts, axis=1), expected) < tolerance(config)


@pytest.mark.parametrize("family", PRESETS)
def test_the_5m_preset_is_the_oracle(backend, family):
    config = PRESETS[family]["5m"]
    weights = initial_weights(config, seed=3)
    ids = np.random.default_rng(4).integers(config.vocab_size, size=(1, 20))
    expected = oracle.model_logits(config, weights, ids)
    found = logits(backend, backend.build(config, weights), ids)
    # 24 sublayers of rounding, which a number near 0 passes on enlarged through its phase
    assert oracle.relative_error(found, expected) < 1e-4


def rounded(weights: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The weights, each moved by less than two units in its last place."""
    random = np.random.default_rng(seed)
    return {
        name: (value * (1 + random.uniform(-EPS, EPS, value.shape))).astype(np.float32)
        for name, value in weights.items()
    }


@every_model
def test_both_backends_give_the_same_logits_and_gradients(config):
    """Closer to one another than either needs to be to the oracle; weights go by one name.

    The unit phase g/|g| has slope 1/|g|, so a channel near 0 passes rounding on enlarged, by an
    amount that depends on the draw. Gradients may therefore differ by what rounding the weights
    once makes of them, besides the usual relative error.
    """
    pytest.importorskip("torch")
    weights = weights_of(config)
    random = np.random.default_rng(6)
    ids = random.integers(config.vocab_size, size=(2, 33))
    dlogits = random.normal(size=(*ids.shape, config.vocab_size)).astype(np.float32)
    results = []
    for name in ("mlx", "torch"):
        backend = get_backend(name)
        model = backend.build(config, weights)
        results.append((logits(backend, model, ids), gradients(backend, model, ids, dlogits)))
    (first, first_gradients), (second, second_gradients) = results
    assert oracle.relative_error(first, second) < tolerance(config)
    assert first_gradients.keys() == second_gradients.keys()
    moved = [
        gradients(backend, backend.build(config, rounded(weights, seed)), ids, dlogits)
        for seed in range(3)
    ]
    for name, gradient in first_gradients.items():
        other = second_gradients[name]
        sensitivity = max(np.abs(near[name] - other).max() for near in moved)
        error = np.abs(gradient - other).max()
        assert error < 10 * sensitivity + tolerance(config) * np.abs(other).max(), name
