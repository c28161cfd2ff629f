"""A run on another tokenizer: trained, resumed, evaluated and continued on it, and on no other."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
from small_run import TINY, assert_same_run, eager, run, small
from tokenizer_files import byte_fallback, written

import mlx_pam
from mlx_pam import checkpoint
from mlx_pam.config import PRESETS, VOCABULARIES, ModelConfig, TrainConfig
from mlx_pam.data.corpus import load_corpus
from mlx_pam.errors import CheckpointError, ConfigError
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
    with pytest.raises(ConfigError, match=r"tokenizer must be gpt2, bytes, .* got 'gpt3'"):
        small(corpus, tmp_path, tokenizer="gpt3").model_config()
    with pytest.raises(ConfigError, match=r"tokenizer must be gpt2, bytes, .* got ''"):
        small(corpus, tmp_path, tokenizer="")


@pytest.fixture
def llama(tmp_path) -> Path:
    return written(tmp_path / "llama", byte_fallback())


def of_vocabulary(tokenizer: Path) -> ModelConfig:
    size = TrainConfig(tokenizer=str(tokenizer)).vocabulary().size
    return dataclasses.replace(TINY, vocab_size=size)


def test_a_run_on_a_tokenizer_file_carries_it(backend, corpus, tmp_path, llama) -> None:
    settings = {
        "tokenizer": str(llama), "backend": backend.name, "steps": 4, "eval_every": 2,
        "sample_every": 2, "sample_tokens": 5,
    }  # fmt: skip
    model_config = of_vocabulary(llama)
    raw = (llama / "tokenizer.json").read_bytes()
    whole = run(corpus, tmp_path / "whole", model_config, **settings)
    run(corpus, tmp_path / "cut", model_config, **settings, stop_after=1)
    run(corpus, tmp_path / "cut", model_config, **settings, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert (whole.checkpoint / "tokenizer.json").read_bytes() == raw
    # the folder of a checkpoint is one that holds a tokenizer
    settings |= {"tokenizer": str(whole.checkpoint), "steps": 6}
    run(corpus, tmp_path / "cut", model_config, **settings, resume=True)

    shutil.rmtree(llama)
    with eager():
        model = mlx_pam.load(whole.out, backend.name)
        assert model.tokenizer.decode(model.tokenizer.encode(" naïve\n")) == " naïve\n"
        found = evaluate(model, load_corpus(str(corpus), model.tokenizer))
        assert found.tokenizer == "tokenizer.json"
        assert found.bits_per_byte > 0
        alone = mlx_pam.generate(model, "river", max_tokens=8, seed=1)
        pieces = mlx_pam.stream(model, "river", max_tokens=3, seed=1)
        begun = "".join(pieces)
        rest = mlx_pam.generate(model, "", state=pieces.state(), max_tokens=5)
        assert pieces.result().tokens + rest.tokens == alone.tokens
        tokens = [*model.tokenizer.encode("river"), *alone.tokens]
        assert model.tokenizer.decode(tokens) == "river" + alone.text
        assert alone.text.startswith(begun.rstrip("\ufffd"))


def test_a_prompt_goes_on_with_a_text_without_a_space_of_its_own(corpus, tmp_path, llama) -> None:
    settings = {"tokenizer": str(llama), "steps": 1}
    model = mlx_pam.load(run(corpus, tmp_path / "run", of_vocabulary(llama), **settings).out, "mlx")
    pieces = mlx_pam.stream(model, "the ri", max_tokens=0)
    list(pieces)
    state = pieces.state()
    after = mlx_pam.generate(model, "ver", state=state, max_tokens=0)
    assert after.prompt_tokens == len(model.tokenizer.encode("ver", begins=False))
    assert model.tokenizer.decode([*state.recent, *model.tokenizer.encode("ver", False)]) == (
        "the river"
    )


def test_a_run_is_not_resumed_on_another_tokenizer_file(corpus, tmp_path, llama) -> None:
    model_config = of_vocabulary(llama)
    run(corpus, tmp_path / "run", model_config, tokenizer=str(llama), steps=1)
    written(llama, byte_fallback(), eos_token="<s>")
    told = r"tokenizer must be 'tokenizer.json \(\w+\)' to resume .*, got 'tokenizer.json \(\w+\)'"
    with pytest.raises(ConfigError, match=told):
        run(corpus, tmp_path / "run", model_config, tokenizer=str(llama), steps=1, resume=True)


def test_a_damaged_or_missing_tokenizer_is_told_by_its_name(corpus, tmp_path, llama) -> None:
    done = run(corpus, tmp_path / "run", of_vocabulary(llama), tokenizer=str(llama), steps=1)
    folder, file = done.checkpoint, done.checkpoint / "tokenizer.json"
    raw = file.read_bytes()
    other = json.dumps(json.loads(raw), indent=1).encode()
    for damaged in (raw[:-1], other, b"{}" + raw[2:]):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            mlx_pam.load(folder, "mlx")
    (folder / "complete.json").unlink()  # as in a model that is handed on
    for damaged in (raw[:-1], other, b"{}" + raw[2:]):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json .*(cannot be used|is damaged)"):
            mlx_pam.load(folder, "mlx")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        mlx_pam.load(folder, "mlx")
    file.write_bytes(raw)
    assert mlx_pam.load(folder, "mlx").tokenizer.name == "tokenizer.json"
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<s>"}')
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json beside it is damaged"):
        mlx_pam.load(folder, "mlx")


def test_a_model_that_is_handed_on_with_its_tokenizer_is_whole(corpus, tmp_path, llama) -> None:
    done = run(corpus, tmp_path / "run", of_vocabulary(llama), tokenizer=str(llama), steps=1)
    saved = checkpoint.load(done.checkpoint)
    alone = tmp_path / "alone"
    checkpoint.save(alone, saved.config, saved.weights, tokenizer=saved.tokenizer)
    model = mlx_pam.load(alone, "mlx")
    assert model.tokenizer.fingerprint == mlx_pam.load(done.checkpoint, "mlx").tokenizer.fingerprint
