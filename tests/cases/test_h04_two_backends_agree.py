"""H04: one checkpoint is one model, whichever backend reads it, generates or trains on with it."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from small_run import eager, run
from tiny_models import TINY, TINY_TRANSFORMER, random_checkpoint

from mlx_pam import generate, load
from mlx_pam.config import SAMConfig, recipe_for
from mlx_pam.training.metrics import read_log

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)

TINY_SAM = SAMConfig(dim=16, num_layers=2, num_heads=2, head_dim=8, alpha_pam_init=1.0)
BATCH = np.random.default_rng(0).integers(50257, size=(4, 65)).astype(np.int32)
every_family = pytest.mark.parametrize("config", [TINY, TINY_SAM, TINY_TRANSFORMER])


@pytest.fixture
def models(tmp_path, config):
    """The checkpoint, read by MLX and by PyTorch."""
    folder = random_checkpoint(tmp_path / "model", config)
    return [load(folder, backend=name) for name in ("mlx", "torch")]


@every_family
def test_logits_and_fifty_greedy_tokens_agree(models):
    prompt = BATCH[0, :40].tolist()
    first, second = (model.decoder().prefill([prompt]) for model in models)
    assert np.abs(first - second).max() < 1e-3
    texts = [generate(model, prompt, temperature=0, max_tokens=50) for model in models]
    assert texts[0].tokens == texts[1].tokens
    assert len(texts[0].tokens) == 50


@every_family
def test_loss_and_gradient_norm_agree(models):
    losses, norms = [], []
    for model in models:
        learner = model.backend.Learner(model.model, recipe_for("tuned", "pam", "5m"), "float32")
        losses.append(learner.gradient(BATCH, 256) / 256)
        norms.append(learner.gradient_norm())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize(("first", "then"), [("mlx", "torch"), ("torch", "mlx")])
def test_a_run_moves_to_the_other_backend_with_its_moments(corpus, tmp_path, first, then):
    """Ten steps of one backend are five of it and five of the other, AdamW's moments carried."""
    settings = {"steps": 10, "eval_every": 10}
    with eager():
        run(corpus, tmp_path / "whole", backend=first, **settings)
        run(corpus, tmp_path / "moved", backend=first, stop_after=5, **settings)
        run(corpus, tmp_path / "moved", backend=then, resume=True, **settings)
    whole, moved = (read_log(tmp_path / name, "step") for name in ("whole", "moved"))
    assert [step["loss"] for step in moved] == pytest.approx(
        [step["loss"] for step in whole], rel=1e-4
    )
    assert [step["lr"] for step in moved] == [step["lr"] for step in whole]
