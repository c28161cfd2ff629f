"""H03: a token changes no logits before it, to the last bit, and all logits from it on."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.config import PAMConfig, SAMConfig
from mlx_pam.ops.retrieval import FORMS

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "vocab_size": 300}
MODELS = {
    "pam": PAMConfig(**SMALL, alpha_pam_init=1.0),
    "pam, gate per channel": PAMConfig(**SMALL, alpha_pam_init=1.0, protect="channel"),
    "sam": SAMConfig(**SMALL, alpha_pam_init=1.0),
}
TIME = 100


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("form", ["auto", *FORMS])
@pytest.mark.parametrize("changed", [0, 17, 63, 64, TIME - 1])
def test_a_token_changes_its_own_logits_and_later_ones_only(backend, config, mode, form, changed):
    model = backend.build(config, seed=2)
    getattr(model, mode)()
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(2, TIME))
    other = ids.copy()
    other[:, changed] = (ids[:, changed] + 1) % config.vocab_size
    before, after = (np.array(model.forward(mx.array(x), form=form)[0]) for x in (ids, other))
    differs = (before != after).any(axis=-1)  # [B, T]
    assert not differs[:, :changed].any()
    assert differs[:, changed:].all()
