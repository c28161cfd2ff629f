"""A model of any configuration is one function: at once or by tokens, and in either backend."""

from __future__ import annotations

import importlib.util

import numpy as np
from hypothesis import given
from hypothesis import strategies as some
from properties.configs import VOCABULARY, configs
from properties.examples import examples

from mlx_pam.backend import get_backend
from mlx_pam.config import ModelConfig
from mlx_pam.parameters import initial_weights

BACKENDS = [get_backend("mlx")]
if importlib.util.find_spec("torch"):
    BACKENDS.append(get_backend("torch"))

texts = some.lists(
    some.lists(some.integers(0, VOCABULARY - 1), min_size=1, max_size=20), min_size=1, max_size=3
)


def weights_of(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Weights with no zero among them, so that every part has a say."""
    random = np.random.default_rng(seed)
    drawn = initial_weights(config, seed)
    return {name: w + 0.1 * random.normal(size=w.shape).astype(np.float32)
            for name, w in drawn.items()}  # fmt: skip


def logits(config, weights, prompts, cut, backends) -> list[np.ndarray]:
    """After the last token of each text, `[V]`: a beginning at once, the rest by steps.

    Where there are two backends the first reads the beginning, and the other goes on.
    """
    found = []
    for prompt in prompts:
        begun = max(1, min(len(prompt), cut))
        decoder = backends[0].Decoder(backends[0].build(config, weights))
        answer = decoder.prefill([prompt[:begun]])
        if len(backends) > 1:
            state = decoder.state()
            decoder = backends[1].Decoder(backends[1].build(config, weights))
            decoder.restore(state)
        for token in prompt[begun:]:
            answer = decoder.step(np.array([token]))
        found.append(np.array(answer)[0])
    return found


@examples(25)
@given(configs(), texts, some.integers(1, 20), some.integers(0, 9))
def test_any_way_of_reading_gives_the_same_logits(config, prompts, cut, seed):
    weights = weights_of(config, seed)
    ways = [
        logits(config, weights, prompts, 99, BACKENDS[:1]),
        logits(config, weights, prompts, cut, BACKENDS[:1]),
        logits(config, weights, prompts, cut, BACKENDS[::-1]),
    ]
    decoder = BACKENDS[-1].Decoder(BACKENDS[-1].build(config, weights))
    ways.append(list(decoder.prefill(prompts)))  # side by side, of different lengths
    scale = max(1.0, *(float(np.abs(row).max()) for row in ways[0]))
    for way in ways[1:]:
        for one, other in zip(ways[0], way, strict=True):
            assert one.shape == other.shape == (VOCABULARY,)
            np.testing.assert_allclose(other, one, atol=2e-4 * scale)
