"""A restored optimizer is where the parameters are, its count of steps too."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from mlx_pam.backend import get_backend
from mlx_pam.config import PAMConfig, recipe_for


def test_the_restored_step_is_on_the_device_of_its_parameter():
    """As the fused update wants it; the meta device stands for those of GPUs."""
    backend, recipe = get_backend("torch"), recipe_for("tuned", "pam", "5m")
    config = PAMConfig(dim=8, num_layers=1, num_heads=2, head_dim=4, vocab_size=11)
    source = backend.Learner(backend.build(config, seed=0), recipe, "float32", False)
    model = backend.build(config, seed=0).to("meta")
    learner = backend.Learner(model, recipe, "float32", False)
    learner.restore(source.weights(), source.optimizer())
    states = learner._optimizer.state.values()
    assert {state["step"].device.type for state in states} == {"meta"}
