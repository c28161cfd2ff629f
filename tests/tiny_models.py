"""A model small enough for a test, whose memory matters to its logits; imported by tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mlx_pam import checkpoint
from mlx_pam.backend import get_backend
from mlx_pam.config import ModelConfig, PAMConfig, TransformerConfig, recipe_for
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.language_model import LanguageModel
from mlx_pam.parameters import initial_weights

# alpha_pam_init 1: the memories of random weights weigh as much as the gated units
TINY = PAMConfig(dim=16, num_layers=2, num_heads=2, head_dim=8, alpha_pam_init=1.0)
TINY_TRANSFORMER = TransformerConfig(dim=32, num_layers=2, num_heads=2, head_dim=16)


def random_checkpoint(folder: Path, config: ModelConfig = TINY) -> Path:
    """A checkpoint with the initial weights."""
    return checkpoint.save(folder, config, initial_weights(config, seed=0))


def overfitted(text: str, steps: int) -> LanguageModel:
    """A model that has been trained on one text until it knows it by heart."""
    backend = get_backend()
    learner = backend.Learner(backend.build(TINY), recipe_for("tuned", "pam", "5m"), "float32")
    batch = np.array([[gpt2().end_of_text, *gpt2().encode(text)]], np.int32)
    for _ in range(steps):
        learner.gradient(batch, batch.size - 1)
        learner.update(1e-2)
    return LanguageModel(TINY, gpt2(), backend, learner.model)
