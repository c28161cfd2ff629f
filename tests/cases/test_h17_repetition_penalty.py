"""H17: a penalty of 1 is none; the usual rule as by hand; the additive one forbids at 1e6."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, random_checkpoint

from mlx_pam import generate, load
from mlx_pam.cli import main
from mlx_pam.language_model import LanguageModel
from mlx_pam.sampling import SamplingConfig, distribution


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("h17") / "model")


@pytest.fixture(scope="module")
def model(folder) -> LanguageModel:
    return load(folder)


def tokens(folder: Path, capsys, *words: str) -> list[int]:
    words = ("generate", "--checkpoint", str(folder), "--prompt", "Hello there", "--json", *words)
    assert main([*words, "--max-tokens", "60", "--seed", "4"]) == 0
    return json.loads(capsys.readouterr().out)["tokens"]


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_penalty_of_one_is_none(folder, capsys, temperature):
    words = ("--temperature", temperature)
    without = tokens(folder, capsys, *words)
    assert tokens(folder, capsys, *words, "--repetition-penalty", "1.0") == without


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_penalty_of_a_million_never_repeats(folder, model, capsys, temperature):
    words = ("--temperature", temperature, "--repetition-rule", "additive")
    words += ("--repetition-penalty", "1e6")
    drawn = tokens(folder, capsys, *words, "--repetition-window", "0")
    every = model.tokenizer.encode("Hello there") + drawn
    assert len(set(every)) == len(every) == 62


def test_without_it_the_same_model_repeats(model):
    """So the test above can fail: this text has repetitions for the penalty to prevent."""
    drawn = generate(model, "Hello there", temperature=0, max_tokens=60).tokens
    assert len(set(drawn)) < len(drawn)


@pytest.mark.parametrize("shift", [0.0, -100.0, 100.0], ids=["as they are", "negative", "positive"])
@pytest.mark.parametrize("penalty", [1.05, 1.2, 2.0, 1e6])
def test_a_token_penalized_additively_never_rises(model, shift, penalty):
    prompt = model.tokenizer.encode("Hello there, hello again and again")
    logits = model.decoder().prefill([prompt])[0].astype(np.float64) + shift
    assert shift == 0 or (np.sign(logits) == np.sign(shift)).all()
    seen = [*prompt, int(logits.argmax())]
    everything = {"top_k": 0, "top_p": 1.0, "repetition_window": 0}
    before = np.zeros(TINY.vocab_size)
    after = np.zeros(TINY.vocab_size)
    for vector, settings in (
        (before, SamplingConfig(**everything)),
        (
            after,
            SamplingConfig(**everything, repetition_penalty=penalty, repetition_rule="additive"),
        ),
    ):
        ids, probabilities = distribution(logits, settings, seen)
        vector[ids] = probabilities
    assert (after[seen] < before[seen]).all()


def test_the_usual_rule_gives_the_values_computed_by_hand(model):
    prompt = model.tokenizer.encode("Hello there, hello again")
    logits = model.decoder().prefill([prompt])[0].astype(np.float64)
    seen = sorted({*prompt, int(logits.argmax()), int(logits.argmin())})
    by_hand = logits.copy()
    for token in seen:
        by_hand[token] = logits[token] / 1.3 if logits[token] > 0 else logits[token] * 1.3
    weights = np.exp(by_hand - by_hand.max())
    settings = {"repetition_penalty": 1.3, "repetition_window": 0, "top_k": 0, "top_p": 1.0}
    ids, probabilities = distribution(logits, SamplingConfig(**settings), seen)
    np.testing.assert_allclose(probabilities, weights[ids] / weights.sum(), rtol=1e-9)
    assert (logits[seen] > 0).any()
    assert (logits[seen] < 0).any()
