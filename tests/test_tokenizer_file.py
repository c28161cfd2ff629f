"""A `tokenizer.json` as JSON: which tokens it has, which ends a text, and what is no such file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_pam.config import TokenizerFile, TrainConfig, Vocabulary, read_tokenizer_file
from mlx_pam.errors import ConfigError


def spec(*special: str, **others: bool) -> dict[str, Any]:
    """Tokens a to d, and added ones from 4 on."""
    contents = {**dict.fromkeys(special, True), **others}
    added = [
        {"id": 4 + n, "content": content, "special": is_special}
        for n, (content, is_special) in enumerate(contents.items())
    ]
    return {"model": {"vocab": {"a": 0, "b": 1, "c": 2, "d": 3}}, "added_tokens": added}


def written(folder: Path, what: dict[str, Any], settings: Any = None) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(what))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("special", "settings", "expected"),
    [
        (["<s>", "</s>"], None, "</s>"),
        (["[SEP]", "</s>", "<|endoftext|>"], None, "<|endoftext|>"),
        (["<s>", "</s>"], {"eos_token": "<s>"}, "<s>"),
        (["<s>", "</s>"], {"eos_token": {"content": "<s>", "lstrip": False}}, "<s>"),
        (["<s>", "</s>"], {"eos_token": None}, "</s>"),
        (["</s>"], {"eos_token": "d"}, "d"),
    ],
)
def test_end_of_text_is_named_or_has_a_known_name(tmp_path, special, settings, expected) -> None:
    file = read_tokenizer_file(written(tmp_path, spec(*special), settings))
    assert file.tokens[file.end_of_text] == expected
    again = TokenizerFile.of(*file.files.values(), "there")
    assert again.vocabulary == file.vocabulary == Vocabulary(4 + len(special), file.end_of_text)
    assert again.fingerprint == file.fingerprint
    assert file.files["tokenizer.json"] == (tmp_path / "tokenizer.json").read_bytes()


def test_without_an_end_of_text_the_special_tokens_are_told(tmp_path) -> None:
    what = spec("<s>", "<pad>", **{"</s>": False})
    with pytest.raises(ConfigError, match="whose special tokens are <s>, <pad>: name it in a"):
        read_tokenizer_file(written(tmp_path, what))
    with pytest.raises(ConfigError, match="whose special tokens are none: name it"):
        read_tokenizer_file(written(tmp_path, spec()))
    with pytest.raises(ConfigError, match="must be one of its tokens, got '<end>'"):
        read_tokenizer_file(written(tmp_path, what, {"eos_token": "<end>"}))


def test_another_end_of_text_is_another_tokenizer(tmp_path) -> None:
    one = read_tokenizer_file(written(tmp_path, spec("<s>", "</s>")))
    other = read_tokenizer_file(written(tmp_path, spec("<s>", "</s>"), {"eos_token": "<s>"}))
    assert one.fingerprint != other.fingerprint


def test_vocabulary_of_a_unigram_model_and_gaps_are_counted() -> None:
    what = spec("</s>")
    what["model"]["vocab"] = [["<unk>", 0.0], ["a", -1.5]]
    file = TokenizerFile.of(json.dumps(what).encode(), None, "here")
    assert file.tokens == {0: "<unk>", 1: "a", 4: "</s>"}
    assert file.vocabulary == Vocabulary(5, 4)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xff", b"[]", b"{}", b'{"model": 1}', b'{"model": {"vocab": {}}}',
        b'{"model": {"vocab": {"a": -1}}}', b'{"model": {"vocab": {"a": "b"}}}',
        b'{"model": {"vocab": [1]}}', b'{"model": {"vocab": {"a": 0}}, "added_tokens": [{}]}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_refused_by_its_name(raw: bytes) -> None:
    with pytest.raises(ConfigError, match=r"a tokenizer.json of the library tokenizers, got here"):
        TokenizerFile.of(raw, None, "here")


@pytest.mark.parametrize("settings", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_settings_that_are_no_object_are_refused_by_their_name(settings: bytes) -> None:
    raw = json.dumps(spec("</s>")).encode()
    with pytest.raises(ConfigError, match=r"^the tokenizer_config.json beside here must be"):
        TokenizerFile.of(raw, settings, "here")


def test_a_path_that_is_not_there_is_refused(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "absent.json", "x" * 5000):
        with pytest.raises(ConfigError, match=r"tokenizer must be gpt2, bytes, or a tok"):
            read_tokenizer_file(path)


def test_a_file_that_changes_is_read_anew(tmp_path) -> None:
    config = TrainConfig(tokenizer=str(written(tmp_path, spec("</s>"))))
    assert config.model_config().vocab_size == 5
    written(tmp_path, spec("<s>", "</s>"))
    assert config.model_config().vocab_size == 6


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("models/my llama", "runs/pam-5m-sample-my-llama"),
        ("models/my-llama/tokenizer.json", "runs/pam-5m-sample-my-llama"),
        ("32k.json", "runs/pam-5m-sample-32k"),
        ("tokenizer.json", "runs/pam-5m-sample-tokenizer"),
        ("./bytes", "runs/pam-5m-sample-bytes"),
    ],
)
def test_the_run_folder_has_the_name_of_the_tokenizer(path: str, folder: str) -> None:
    assert TrainConfig(tokenizer=path).run_folder == Path(folder)
