"""H03: a token changes no logits before it, to the last bit, and all logits from it on."""

from __future__ import annotations

import numpy as np
import pytest
from live_model import logits

from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig
from mlx_pam.ops.retrieval import FORMS

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "vocab_size": 300}
MODELS = {
    "pam": PAMConfig(**SMALL, alpha_pam_init=1.0),
    "pam, gate per channel": PAMConfig(**SMALL, alpha_pam_init=1.0, protect="channel"),
    "sam": SAMConfig(**SMALL, alpha_pam_init=1.0),
    "transformer": TransformerConfig(**SMALL),
}
CASES = [(name, {}) for name in MODELS] + [
    (name, {"form": form}) for name in MODELS if name != "transformer" for form in FORMS
]
TIME = 100


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("changed", [0, 17, 63, 64, TIME - 1])
def test_a_token_changes_its_own_logits_and_later_ones_only(backend, name, form, mode, changed):
    config = MODELS[name]
    model = backend.build(config, seed=2)
    getattr(model, mode)()
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(2, TIME))
    other = ids.copy()
    other[:, changed] = (ids[:, changed] + 1) % config.vocab_size
    before, after = (logits(backend, model, x, **form) for x in (ids, other))
    differs = (before != after).any(axis=-1)  # [B, T]
    assert not differs[:, :changed].any()
    assert differs[:, changed:].all()
