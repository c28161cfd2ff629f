from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_run import TINY, run, write_corpus

from mlx_pam.backend import get_backend
from mlx_pam.cli import main
from mlx_pam.data.corpus import Corpus, load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import ConfigError, DataError
from mlx_pam.evaluate import EvaluateConfig, evaluate, split_loss
from mlx_pam.generate import generate
from mlx_pam.language_model import LanguageModel
from mlx_pam.parameters import initial_weights


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    weights = initial_weights(TINY, seed=2)
    weights["embedding.weight"] *= 8  # so that tokens differ in likelihood
    backend = get_backend("mlx")
    return LanguageModel(TINY, gpt2(), backend, backend.build(TINY, weights))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    return load_corpus(str(write_corpus(folder, 800)), gpt2(), cache_dir=folder)


class UnevenLearner:
    """The loss of a target is its id in thousandths: sums tell which targets were counted."""

    def evaluate(self, batch: np.ndarray, mask: np.ndarray) -> float:
        assert batch.shape == (mask.shape[0], mask.shape[1] + 1)
        return float(batch[:, 1:][mask].sum() / 1000)


@pytest.mark.parametrize("count", [2, 8, 9, 10, 17, 64, 65, 66, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_every_token_but_the_first_counts_once_in_any_batch(count, batch_size):
    tokens = np.random.default_rng(count).integers(0, 50257, count).astype(np.uint16)
    loss = split_loss(UnevenLearner(), tokens, seq_len=8, batch_size=batch_size)
    assert loss == pytest.approx(tokens[1:].astype(float).mean() / 1000)


def test_batch_size_does_not_change_the_result(model, corpus):
    losses = [
        evaluate(model, corpus, seq_len=16, batch_size=batch_size).loss for batch_size in (1, 3, 8)
    ]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def test_loss_is_that_of_the_decoder_token_by_token(model):
    tokens = np.array([464, 7850, 4539, 625, 262, 7815], np.uint16)
    corpus = SimpleNamespace(
        name="six tokens", split=lambda _: tokens, bytes={"validation": 27}, train=tokens
    )
    decoder = model.decoder()
    logits = [decoder.prefill([[int(tokens[0])]])[0]]
    logits += [decoder.step(np.array([token]))[0] for token in tokens[1:-1]]
    chosen = np.array([row[t] for row, t in zip(logits, tokens[1:], strict=True)], np.float64)
    partition = np.array([np.logaddexp.reduce(row.astype(np.float64)) for row in logits])
    result = evaluate(model, corpus, seq_len=8, batch_size=2)
    assert result.loss == pytest.approx((partition - chosen).mean(), abs=1e-4)
    assert result.tokens == 5


def test_loss_is_that_which_generation_reports(model):
    drawn = generate(model, [464], max_tokens=6, seed=1, temperature=1.0, top_k=0, top_p=1.0,
                     logprobs=True)  # fmt: skip
    tokens = np.array([464, *drawn.tokens], np.uint16)
    corpus = SimpleNamespace(name="drawn", split=lambda _: tokens, bytes={"validation": 30})
    loss = evaluate(model, corpus, seq_len=6).loss
    assert loss == pytest.approx(-np.mean(drawn.logprobs), abs=1e-4)


def test_the_protocol_stands_beside_the_figures(model, corpus):
    result = evaluate(model, corpus, "validation", seq_len=16, batch_size=4)
    count = len(corpus.validation) - 1
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    bits = result.loss * count / math.log(2)
    assert result.bits_per_byte == pytest.approx(bits / corpus.bytes["validation"])
    text = result.describe()
    for part in ("validation split", f"{count:,} tokens", "window 16", "stride 16", "token level",
                 "gpt2", "perplexity", "bits per byte"):  # fmt: skip
        assert part in text
    assert result.to_dict()["window"] == result.to_dict()["stride"] == 16


def test_a_split_without_a_target_is_refused(model):
    corpus = SimpleNamespace(name="one", split=lambda _: np.zeros(1, np.uint16), bytes={})
    with pytest.raises(DataError, match="validation split of one must hold 2 tokens, got 1"):
        evaluate(model, corpus)


@pytest.mark.parametrize(("name", "value"), [("split", "dev"), ("seq_len", 0), ("batch_size", -1)])
def test_an_impossible_setting_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be"):
        EvaluateConfig(checkpoint=Path("runs"), **{name: value})


def test_the_command_measures_what_training_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "cache"))
    text = write_corpus(tmp_path, 800)
    result = run(text, tmp_path / "run", steps=2, eval_every=2)
    words = ["evaluate", "--checkpoint", str(tmp_path / "run"), "--data", str(text)]
    words += ["--backend", "mlx"]
    capsys.readouterr()
    assert main([*words, "--seq-len", "8", "--batch-size", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["loss"] == pytest.approx(result.validation_loss, abs=1e-6)
    assert (printed["split"], printed["window"]) == ("validation", 8)
    assert main([*words, "--split", "train", "--seq-len", "64"]) == 0
    assert "train split" in capsys.readouterr().out
    assert main([*words, "--split", "test"]) == 1
    assert "must be one of train, validation, got test" in capsys.readouterr().err
