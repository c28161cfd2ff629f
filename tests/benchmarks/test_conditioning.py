"""The conditioning of a gradient is measured as defined; the page has what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_run import TINY_TRANSFORMER

from mlx_pam.backend import Weights
from mlx_pam.benchmarks import conditioning, rows
from mlx_pam.config import PRESETS, PAMConfig, recipe_for
from mlx_pam.parameters import initial_weights

CONFIG = PAMConfig(dim=8, num_layers=1, num_heads=2, head_dim=4, vocab_size=50)
RECIPE = recipe_for("tuned", "pam", "300k")
BATCHES = [np.random.default_rng(i).integers(50, size=(2, 10)).astype(np.int32) for i in range(3)]


def vector(weights: Weights) -> np.ndarray:
    return np.concatenate([weights[name].ravel() for name in sorted(weights)]).astype(np.float64)


@pytest.mark.parametrize("power", [1, 3, 20])
def test_a_gradient_that_is_a_power_of_the_weights_changes_that_many_times_as_much(power):
    weights = {"b": np.ones((30, 40), np.float32), "a": np.full(50, -1, np.float32)}
    found = conditioning.conditioning(lambda w, batch: vector(w) ** power, weights, BATCHES)
    assert found == pytest.approx(power, rel=1e-3)


def test_the_median_of_the_batches_is_taken():
    weights, powers = {"a": np.ones(1000, np.float32)}, iter([1, 1, 50, 50, 4, 4])
    found = conditioning.conditioning(lambda w, b: vector(w) ** next(powers), weights, BATCHES)
    assert found == pytest.approx(4, rel=1e-2)
    rounded = iter([1.5, 1.01, 1.02])
    found = conditioning.rounding(
        lambda w, b: vector(w), lambda w, b: next(rounded) * vector(w), weights, BATCHES
    )
    assert found == pytest.approx(0.02)


def test_gradients_are_those_of_training_at_any_weights(backend):
    """Unclipped, and independent of what was asked for before."""
    gradient = conditioning.Gradients(backend, CONFIG, RECIPE, "float32")
    first, second = (initial_weights(CONFIG, seed) for seed in (1, 2))
    found = [gradient(weights, BATCHES[0]) for weights in (first, second, first)]
    np.testing.assert_array_equal(found[0], found[2])
    for weights, vector_ in zip((first, second), found, strict=False):
        learner = backend.Learner(backend.build(CONFIG, weights), RECIPE, "float32", False)
        learner.gradient(BATCHES[0], BATCHES[0][:, 1:].size)
        assert np.linalg.norm(vector_) == pytest.approx(learner.gradient_norm(), rel=1e-5)


def test_a_row_has_both_figures_of_both_ends(backend, corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(PRESETS["transformer"], "300k", TINY_TRANSFORMER)
    out = tmp_path / "conditioning.jsonl"
    words = f"--models transformer --seq-len 16 --steps 2 --batches 1 --data {corpus}"
    words = [*words.split(), "--backend", backend.name, "--out", str(out)]
    assert conditioning.main(words) == 0
    (row,) = rows.read(out)
    assert row["tokens"] == 2 * 4 * 16
    for end in ("start", "end"):
        assert 0.5 < row[f"conditioning_{end}"] < 50
        assert 1e-3 < row[f"bfloat16_{end}"] < 0.1
    assert [*conditioning.table([row])][-1] in capsys.readouterr().out


def test_the_page_has_the_table_of_the_rows_that_are_kept():
    lines = (Path(__file__).parents[2] / "docs" / "operator.md").read_text("utf-8").splitlines()
    table = conditioning.table(rows.read(conditioning.RESULTS))
    assert [line for line in table if line not in lines] == []
