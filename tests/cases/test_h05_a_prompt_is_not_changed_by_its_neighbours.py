"""H05: a prompt is not changed by its neighbours, whatever their lengths and order."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TINY, TINY_TRANSFORMER, random_checkpoint

from mlx_pam import generate, load
from mlx_pam.generate import Generation
from mlx_pam.language_model import LanguageModel

LENGTHS = (1, 7, 40, 200)
GREEDY = {"temperature": 0, "max_tokens": 20, "logprobs": True}


@pytest.fixture(scope="module", params=["mlx", "torch"])
def backend_name(request) -> str:
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture(scope="module", params=[TINY, TINY_TRANSFORMER], ids=lambda c: c.model_type)
def model(request, backend_name, tmp_path_factory) -> LanguageModel:
    path = random_checkpoint(tmp_path_factory.mktemp("h05") / "model", request.param)
    return load(path, backend_name)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [draw.integers(0, 50256, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def alone(model, prompts) -> list[Generation]:
    return [generate(model, prompt, **GREEDY) for prompt in prompts]


def assert_same(batch: list[Generation], alone: list[Generation]) -> None:
    for together, single in zip(batch, alone, strict=True):
        assert together.tokens == single.tokens
        np.testing.assert_allclose(together.logprobs, single.logprobs, atol=1e-3)


def test_a_batch_gives_what_each_prompt_gives_alone(model, prompts, alone):
    assert_same(generate(model, prompts, **GREEDY), alone)


def test_the_order_of_the_batch_does_not_matter(model, prompts, alone):
    assert_same(generate(model, prompts[::-1], **GREEDY), alone[::-1])


def test_drawn_tokens_do_not_depend_on_neighbours_either(model, prompts):
    batch = generate(model, prompts, max_tokens=20, seed=5)
    for row, prompt in enumerate(prompts):
        assert generate(model, prompt, max_tokens=20, seed=5 + row).tokens == batch[row].tokens


def test_the_tolerance_would_show_a_leak(model, prompts, alone):
    """What stands in a row's memory moves its log-probabilities by more than the tolerance."""
    for prompt, single in zip(prompts[1:], alone[1:], strict=True):
        shortened = generate(model, prompt[1:], **GREEDY)
        assert np.abs(np.subtract(shortened.logprobs, single.logprobs)).max() > 1e-3
