"""H01: one forward over a text and its tokens fed one at a time give the same logits."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from live_model import logits

from mlx_pam.config import PRESETS, PAMConfig, SAMConfig, TransformerConfig

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "vocab_size": 300}
MODELS = {
    "pam small, alpha 1": PAMConfig(**SMALL, alpha_pam_init=1.0),
    "pam small, gate per channel": PAMConfig(**SMALL, protect="channel", alpha_pam_init=1.0),
    "sam small": SAMConfig(**SMALL, alpha_pam_init=1.0),
    "transformer small": TransformerConfig(**SMALL),
}
# around the chunks of 32 and 64 tokens, around powers of two, and past the first room of a cache
LENGTHS = [1, 2, 31, 32, 33, 63, 64, 65, 127, 200, 513]


def assert_parallel_equals_recurrent(backend, config, lengths):
    model = backend.build(config, seed=1)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=max(lengths))

    decoder = backend.Decoder(model)
    by_token = np.empty((len(ids), config.vocab_size), np.float32)
    by_token[0] = decoder.prefill([[int(ids[0])]])[0]
    for t in range(1, len(ids)):
        by_token[t] = decoder.step(ids[t : t + 1])[0]

    for length in lengths:
        at_once = logits(backend, model, ids[None, :length])[0]
        assert at_once.shape == (length, config.vocab_size)
        assert oracle.relative_error(at_once, by_token[:length]) < 1e-4, length


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_parallel_equals_recurrent_at_every_position_and_length(backend, config):
    assert_parallel_equals_recurrent(backend, config, LENGTHS)


@pytest.mark.parametrize("longest", [65, pytest.param(513, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["pam", "transformer"])
def test_parallel_equals_recurrent_in_the_smallest_preset(backend, family, longest):
    lengths = [length for length in LENGTHS if length <= longest]
    assert_parallel_equals_recurrent(backend, PRESETS[family]["5m"], lengths)


@pytest.mark.parametrize("name", ["pam small, alpha 1", "transformer small"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_of_any_length_is_read_as_its_tokens_are(backend, name, length):
    """Prefill, then one step, against the same tokens in one forward."""
    config = MODELS[name]
    model = backend.build(config, seed=1)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=length + 1)
    at_once = logits(backend, model, ids[None])[0]
    decoder = backend.Decoder(model)
    assert oracle.relative_error(decoder.prefill([ids[:-1].tolist()])[0], at_once[-2]) < 1e-4
    assert oracle.relative_error(decoder.step(ids[-1:])[0], at_once[-1]) < 1e-4
