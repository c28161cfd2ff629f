"""With deterministic, gradients are the plain ones, summed in an order that is always the same."""

from __future__ import annotations

import dataclasses
import importlib

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig, recipe_for
from mlx_pam.ops import rows

SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 60}
CONFIGS = [PAMConfig(**SIZES), SAMConfig(**SIZES), TransformerConfig(**SIZES)]
RECIPE = recipe_for("tuned", "pam", "5m")
BATCH = np.random.default_rng(0).integers(9, size=(4, 34)).astype(np.int32)  # tokens recur


@pytest.mark.parametrize("rows_of_values", [1, 2, 3, 64, 100])
def test_rows_are_added_up_by_number(rows_of_values):
    random = np.random.default_rng(rows_of_values)
    ids = random.integers(7, size=rows_of_values)
    values = random.normal(size=(rows_of_values, 5)).astype(np.float32)
    expected = np.zeros((9, 5))
    np.add.at(expected, ids, values)
    for deterministic in (False, True):
        found = rows.add_up(mx.array(values), mx.array(ids), 9, deterministic)
        np.testing.assert_allclose(np.array(found), expected, atol=1e-5)


def test_no_two_rows_that_are_not_0_go_to_one_place():
    """The last scatter adds one sum per id: atomic additions in any order agree."""
    ids = mx.array([3, 0, 3, 3, 1, 0])
    ids, totals = rows._totals_last(ids, mx.ones((6, 2)))
    assert ids.tolist() == [0, 0, 1, 3, 3, 3]
    assert totals[:, 0].tolist() == [0, 2, 1, 0, 0, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.model_type)
def test_gradients_and_weights_are_the_plain_ones_and_the_same_twice(backend, config, dtype):
    runs = []
    for deterministic in (False, True, True):
        model = backend.build(config, seed=3)
        learner = backend.Learner(model, RECIPE, dtype, deterministic=deterministic)
        loss, norm = learner.gradient(BATCH, 132), learner.gradient_norm()
        learner.update(1e-2)
        runs.append((loss, norm, learner.optimizer()))
    (loss, norm, plain), (_, _, first), (_, _, second) = runs
    assert runs[1][:2] == runs[2][:2]
    assert runs[1][:2] == pytest.approx((loss, norm), rel=1e-5)
    for name, array in plain.items():
        np.testing.assert_array_equal(second[name], first[name], err_msg=name)
        scale = np.abs(array).max()
        np.testing.assert_allclose(first[name], array, atol=1e-4 * scale, err_msg=name)


def test_torch_is_asked_for_it_while_it_makes_gradients(monkeypatch):
    torch = pytest.importorskip("torch")
    from mlx_pam.torch import learner as module
    from mlx_pam.torch.runtime import TorchBackend

    asked, loss = [], module.summed_loss

    def watched(*arrays):
        asked.append(torch.are_deterministic_algorithms_enabled())
        return loss(*arrays)

    monkeypatch.setattr(module, "summed_loss", watched)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    backend = TorchBackend()
    for deterministic in (True, False):
        model = backend.build(CONFIGS[0])
        backend.Learner(model, RECIPE, deterministic=deterministic).gradient(BATCH, 132)
    assert asked == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()


def test_mlx_sums_the_lookup_and_the_loss_so(monkeypatch):
    """Both gradients that a GPU would sum by atomic additions."""
    learner = importlib.import_module("mlx_pam.learner")
    runtime = importlib.import_module("mlx_pam.runtime")
    calls, sort = [], rows._totals_last
    monkeypatch.setattr(rows, "_totals_last", lambda *way: calls.append(way) or sort(*way))
    backend = runtime.MLXBackend()
    for deterministic, expected in ((False, 0), (True, 2)):
        calls.clear()
        model = backend.build(dataclasses.replace(CONFIGS[0], num_layers=1))
        learner.Learner(model, RECIPE, deterministic=deterministic).gradient(BATCH, 132)
        assert len(calls) == expected
