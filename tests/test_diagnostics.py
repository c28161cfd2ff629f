"""Diagnostics are what the exact loop says of each block, and looking changes no bit of a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import oracle
import pytest
from varied import RESET, SIZES, VARIED

from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig, recipe_for
from mlx_pam.parameters import block_of, initial_weights, parameter_table

PLAIN = {
    "pam": PAMConfig(**SIZES),
    "sam": SAMConfig(**SIZES),
    "sam, swiglu": SAMConfig(**SIZES, gated_unit="swiglu"),
    "transformer": TransformerConfig(
        **{name: SIZES[name] for name in ("dim", "num_layers", "num_heads", "head_dim")},
        vocab_size=SIZES["vocab_size"],
    ),
}
CONFIGS = PLAIN | VARIED
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
RECIPE = dataclasses.replace(recipe_for("tuned", "pam", "5m"), clip_norm=0.5)


def windows(seed: int, rows: int = 4, time: int = 19) -> np.ndarray:
    """Token ids `[rows, time + 1]`, the reset token among them."""
    ids = np.random.default_rng(seed).integers(RESET, size=(rows, time + 1)).astype(np.int32)
    ids[:, 7] = RESET
    return ids


def trained(config) -> dict[str, np.ndarray]:
    """Weights whose biases and scales have left their places: units are closed, gates apart."""
    draw, weights = np.random.default_rng(5), initial_weights(config, 3)
    for name, parameter in parameter_table(config).items():
        if parameter.kind in ("bias", "norm", "gate"):
            noise = draw.normal(scale=0.5, size=parameter.shape)
            weights[name] = (weights[name] + noise).astype(np.float32)
    return weights


@every_config
def test_the_statistics_of_a_block_are_the_oracles(backend, config):
    weights, batch = trained(config), windows(1)
    learner = backend.Learner(backend.build(config, weights), RECIPE)
    learner.gradient(batch, batch[:, 1:].size)
    found = learner.diagnostics(batch[:2])
    expected = oracle.block_statistics(config, weights, batch[:2, :-1])
    norms = {f"{block_of(name)}.grad_norm" for name in weights}
    assert found.keys() == expected.keys() | norms
    tolerance = 2e-4 if getattr(config, "qk_norm", None) == "phase" else 2e-5
    for name, value in expected.items():
        if name.endswith("active"):  # rounding may open or close a unit or two of a token
            assert found[name] == pytest.approx(value, abs=2.5 / (2 * 19 * config.hidden_dim))
            assert 0.1 < value < 0.98, "units are open, and others are not"
        elif name.endswith("small_gate"):
            assert found[name] == pytest.approx(value, abs=1.5 / (2 * 19 * config.hidden_dim))
            assert 0 < value < 0.05, "some gates are small, and most are not"
        else:
            assert found[name] == pytest.approx(value, rel=tolerance), name


@every_config
def test_the_norms_are_those_of_the_gradient_that_the_moments_reveal(backend, config):
    recipe, batch = dataclasses.replace(RECIPE, clip_norm=1e9), windows(1)
    learner = backend.Learner(backend.build(config, trained(config)), recipe)
    for part in np.split(batch, 2):
        learner.gradient(part, batch[:, 1:].size)
    found, norm = learner.diagnostics(batch[:1]), learner.gradient_norm()
    learner.update(1e-3)
    moments, squares = learner.optimizer(), {}
    for name in parameter_table(config):
        gradient = moments[f"exp_avg.{name}"].astype(np.float64) / (1 - recipe.betas[0])
        squares[block_of(name)] = squares.get(block_of(name), 0.0) + np.sum(gradient**2)
    for block, square in squares.items():
        assert found[f"{block}.grad_norm"] == pytest.approx(square**0.5, rel=1e-5), block
    assert norm == pytest.approx(sum(squares.values()) ** 0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("dtype", "recompute"), [("float32", False), ("bfloat16", True)], ids=["kept", "anew, bfloat16"]
)
@every_config
def test_looking_changes_no_bit(backend, config, dtype, recompute):
    runs = []
    for look in (False, True):
        learner = backend.Learner(backend.build(config, trained(config)), RECIPE, dtype, recompute)
        losses = []
        for step in (1, 2):
            for part in np.split(windows(step), 2):
                losses.append(learner.gradient(part, 76))
            if look:
                assert all(map(np.isfinite, learner.diagnostics(windows(9)[:1]).values()))
            losses.append(learner.gradient_norm())
            learner.update(1e-2)
        losses.append(learner.evaluate(windows(3), np.ones((4, 19), bool)))
        runs.append((losses, learner.weights() | learner.optimizer()))
    (losses, arrays), (losses_looked, arrays_looked) = runs
    assert losses_looked == losses
    for name, array in arrays.items():
        np.testing.assert_array_equal(arrays_looked[name], array, err_msg=name)


@pytest.mark.parametrize("config", PLAIN.values(), ids=PLAIN)
def test_bfloat16_tells_about_the_same(backend, config):
    batch, found = windows(1), []
    for dtype in ("float32", "bfloat16"):
        learner = backend.Learner(backend.build(config, seed=3), RECIPE, dtype)
        learner.gradient(batch, batch[:, 1:].size)
        found.append(learner.diagnostics(batch[:1]))
        norms = [value for name, value in found[-1].items() if name.endswith("grad_norm")]
        assert np.linalg.norm(norms) == pytest.approx(learner.gradient_norm(), rel=1e-5)
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, rel=0.05, abs=0.005), name


def test_every_array_is_of_one_part_of_the_network():
    for config in CONFIGS.values():
        blocks = len(config.blocks) if config.model_type != "transformer" else config.num_layers
        expected = {"embedding", "head", *(f"layers.{i}" for i in range(blocks))}
        assert {block_of(name) for name in parameter_table(config)} == expected
