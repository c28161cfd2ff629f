"""A run on another tokenizer: trained, resumed, evaluated and continued on it, and on no other."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from small_run import TINY, assert_same_run, eager, run, small

import mlx_pam
from mlx_pam import checkpoint
from mlx_pam.config import PRESETS, VOCABULARIES, TrainConfig
from mlx_pam.data.corpus import load_corpus
from mlx_pam.errors import ConfigError
from mlx_pam.evaluate import evaluate
from mlx_pam.training.metrics import read_log

TINY_BYTES = dataclasses.replace(TINY, vocab_size=257)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_model_follows_the_tokenizer(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    for family in PRESETS:
        config = TrainConfig(model=family, scale="300k", tokenizer=name).model_config()
        assert config.vocab_size == vocabulary.size
    config = TrainConfig(tokenizer=name, reset_at_documents=True, variant="recall").model_config()
    assert config.reset_token == vocabulary.end_of_text


def test_the_run_folder_tells_of_another_tokenizer_than_gpt2() -> None:
    assert TrainConfig().run_folder == Path("runs/pam-5m-sample")
    assert TrainConfig(tokenizer="bytes").run_folder == Path("runs/pam-5m-sample-bytes")


def test_a_run_on_bytes_is_a_run_like_any_other(backend, corpus, tmp_path) -> None:
    settings = {
        "tokenizer": "bytes", "backend": backend.name, "steps": 6,
        "eval_every": 3, "sample_every": 3, "sample_tokens": 5,
    }  # fmt: skip
    whole = run(corpus, tmp_path / "whole", TINY_BYTES, **settings)
    run(corpus, tmp_path / "cut", TINY_BYTES, **settings, stop_after=2)
    run(corpus, tmp_path / "cut", TINY_BYTES, **settings, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    first = read_log(whole.out, "step")[0]
    assert first["loss"] == pytest.approx(math.log(257), abs=0.2)

    with eager():
        model = mlx_pam.load(whole.out, backend.name)
        assert model.tokenizer.name == "bytes"
        assert model.config.vocab_size == 257
        text = load_corpus(str(corpus), model.tokenizer)
        found = evaluate(model, text)
        assert found.tokenizer == "bytes"
        assert found.tokens == found.bytes - 1
        bits = found.loss / math.log(2)
        assert found.bits_per_byte == pytest.approx(bits * found.tokens / found.bytes)
        alone = mlx_pam.generate(model, "naïve", max_tokens=8, temperature=0)
        assert alone.prompt_tokens == 6
        pieces = mlx_pam.stream(model, "naïve", max_tokens=3, temperature=0)
        list(pieces)
        path = pieces.state().save(tmp_path / "state")
        state = mlx_pam.load_state(model, path)
        rest = mlx_pam.generate(model, "", state=state, max_tokens=5, temperature=0)
        assert alone.tokens[3:] == rest.tokens


def test_a_run_is_not_resumed_on_another_tokenizer(corpus, tmp_path) -> None:
    run(corpus, tmp_path, TINY_BYTES, tokenizer="bytes", steps=1)
    told = r"tokenizer must be 'bytes \(\w{16}\)' to resume .*, got 'gpt2 \(\w{16}\)'"
    with pytest.raises(ConfigError, match=told):
        run(corpus, tmp_path, steps=1, resume=True)


def test_a_model_is_refused_that_is_smaller_than_the_vocabulary(corpus, tmp_path) -> None:
    small_one = dataclasses.replace(TINY, vocab_size=256)
    with pytest.raises(ConfigError, match="vocab_size must be at least 257, the bytes tokenizer's"):
        run(corpus, tmp_path, small_one, tokenizer="bytes")


def test_a_model_that_is_handed_on_has_the_tokenizer_of_its_vocabulary(corpus, tmp_path) -> None:
    trained = run(corpus, tmp_path / "run", TINY_BYTES, tokenizer="bytes", steps=1).checkpoint
    saved = checkpoint.load(trained)
    checkpoint.save(tmp_path / "alone", saved.config, saved.weights)
    assert mlx_pam.load(tmp_path / "alone", "mlx").tokenizer.name == "bytes"


def test_an_unknown_tokenizer_is_refused(corpus, tmp_path) -> None:
    with pytest.raises(ConfigError, match="tokenizer must be one of gpt2, bytes, got 'gpt3'"):
        small(corpus, tmp_path, tokenizer="gpt3")
