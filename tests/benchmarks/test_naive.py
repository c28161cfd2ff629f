"""The baseline computes what the product computes: same weights, same loss, same gradients."""

from __future__ import annotations

import numpy as np
import pytest

from mlx_pam.backend import get_backend
from mlx_pam.config import PAMConfig, recipe_for
from mlx_pam.errors import ConfigError
from mlx_pam.parameters import initial_weights

pytest.importorskip("torch")
naive = pytest.importorskip("mlx_pam.benchmarks.naive")

# T = 75 is three chunks of 32, the last one ragged; alpha_pam_init 1: the memories matter
CONFIG = PAMConfig(dim=12, num_layers=2, num_heads=2, head_dim=8, vocab_size=97, alpha_pam_init=1.0)
BATCH = np.random.default_rng(1).integers(0, 97, (2, 76), np.int32)
TOKENS = BATCH[:, 1:].size
RECIPE = recipe_for("tuned", "pam", "5m")


def learners():
    """The baseline's and the product's, of the same weights, none of which is neutral."""
    rng = np.random.default_rng(2)
    weights = {
        name: value + 0.1 * rng.standard_normal(value.shape, np.float32)
        for name, value in initial_weights(CONFIG).items()
    }
    backend = get_backend("torch")
    product = backend.Learner(backend.build(CONFIG, weights), RECIPE, "float32")
    return naive.NaiveLearner(naive.NaivePAM(CONFIG, weights), RECIPE), product


def test_the_baseline_has_the_loss_and_gradients_of_the_product() -> None:
    baseline, product = learners()
    losses = [learner.gradient(BATCH, TOKENS) for learner in (baseline, product)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    gradients = [
        {name: p.grad for name, p in learner.model.named_parameters()}
        for learner in (baseline, product)
    ]
    assert gradients[0].keys() == gradients[1].keys()
    for name, expected in gradients[1].items():
        error = (gradients[0][name] - expected).abs().max() / expected.abs().max()
        assert error < 1e-3, name


def test_the_baseline_trains_as_the_product_does() -> None:
    baseline, product = learners()
    losses = []
    for learner in (baseline, product):
        for _ in range(4):
            last = learner.gradient(BATCH, TOKENS)
            learner.update(1e-2)
        losses.append(last)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_baseline_refuses_a_gate_per_channel() -> None:
    config = PAMConfig(dim=8, num_layers=1, num_heads=1, head_dim=4, protect="channel")
    with pytest.raises(ConfigError, match="protect must be 'head'"):
        naive.NaivePAM(config, {})
