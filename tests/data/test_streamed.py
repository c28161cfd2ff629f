"""Corpora as streams: what is held out, how a change is noticed, what they are mixed with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpora import GPT2, shards, some, texts_of

from mlx_pam.data import stream, streamed
from mlx_pam.data.mixture import load_mixture
from mlx_pam.data.stream import StreamedWindows
from mlx_pam.data.streamed import Streamed, Streaming, local_files, open_stream
from mlx_pam.errors import DataError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny texts are not read a thousand times before the first window."""
    monkeypatch.setattr(stream, "CHUNK", 100)


def opened(path: Path, buffer: int = 5, validation: int = 3, how: str | None = None) -> Streamed:
    return open_stream(local_files(path, how), GPT2, Streaming(buffer, validation))


def trained_on(corpus: Streamed, count: int = 400) -> set[str]:
    stream = corpus.windows(6, 1, 0)
    stream = StreamedWindows(stream.text, 6, 1)  # a block is a window, so none is moved
    tokens = np.concatenate([stream.take(number, 1)[0, :-1] for number in range(count)])
    return set(texts_of(tokens.tolist())[:-1])


def test_the_first_documents_are_held_out_with_their_copies(tmp_path: Path) -> None:
    documents = some(3, 5)
    documents[0] = ["a", "b", "a", "c", "d"]
    documents[2][1] = "b"
    corpus = opened(shards(tmp_path, documents))
    assert texts_of(corpus.validation.tolist()) == ["a", "b", "a"]
    assert trained_on(corpus) == {text for texts in documents for text in texts} - {"a", "b"}
    assert corpus.description == (
        f"{tmp_path}, files: 3, text in column 'text', read as needed; validation: the first 3 "
        "documents held out, and copies of them"
    )
    assert corpus.tokens == {"validation": len(corpus.validation)}


def test_files_that_are_named_for_validation_are_read_in_part_and_train_stays_whole(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "valid.txt").write_text("two\n\nthree\n\none\n\nfour")
    (tmp_path / "test.txt").write_text("no")
    corpus = opened(tmp_path, how="by-blank-line")
    assert texts_of(corpus.validation.tolist()) == ["two", "three", "one"]
    assert trained_on(corpus) == {"one", "two"}
    assert "validation: the first 3 documents of the validation files" in corpus.description
    assert texts_of(opened(tmp_path, 5, 99, "by-blank-line").validation.tolist())[3] == "four"


def test_whole_files_are_held_out_with_their_copies(tmp_path: Path) -> None:
    for number, text in enumerate(["one", "two", "three", "six", "two", "ten"]):
        (tmp_path / f"{number}.txt").write_text(text)
    corpus = opened(tmp_path)
    assert texts_of(corpus.validation.tolist()) == ["one", "two", "three"]
    assert trained_on(corpus) == {"six", "ten"}


def test_too_few_documents_are_told(tmp_path: Path) -> None:
    shards(tmp_path, some(1, 3))
    with pytest.raises(DataError, match=r"more documents than stream_validation, 3, .* got 3"):
        opened(tmp_path)


def test_fingerprint_follows_files_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(tmp_path, some(3, 9))
    found = [opened(tmp_path).fingerprint, opened(tmp_path, 6).fingerprint]
    found += [opened(tmp_path, 5, 4).fingerprint]
    path = tmp_path / "02.jsonl"
    path.write_bytes(path.read_bytes().replace(b"2 8", b"2 9"))
    found += [opened(tmp_path).fingerprint]
    monkeypatch.setattr(GPT2, "fingerprint", "another")
    found += [opened(tmp_path).fingerprint]
    assert len(set(found)) == len(found)
    assert opened(tmp_path).fingerprint == found[-1]


def test_any_change_is_noticed_and_named(tmp_path: Path) -> None:
    """A word of equal length, anywhere in a file that is not large."""
    path = tmp_path / "a.jsonl"
    (tmp_path / "b.jsonl").write_text('{"text": "other"}\n' * 9)
    lines = [json.dumps({"text": f"word {number:04}"}) for number in range(800)]
    path.write_text("\n".join(lines))
    saved = load_mixture(str(tmp_path), GPT2, Streaming(5, 3)).record()
    lines[230] = lines[230].replace("word", "term")
    path.write_text("\n".join(lines))
    told = load_mixture(str(tmp_path), GPT2, Streaming(5, 3)).changed(saved)
    assert told == f"{tmp_path.name} (changed: a.jsonl)"


def test_samples_of_a_large_corpus_reach_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "WHOLE", 999)
    monkeypatch.setattr(streamed, "SAMPLE", 10)
    monkeypatch.setattr(streamed, "SAMPLES", 3)
    path = tmp_path / "a.jsonl"

    def digest(change: int | None, size: int = 1000) -> str:
        raw = bytearray(b"x" * size)
        if change is not None:
            raw[change] = 0
        path.write_bytes(raw)
        return streamed._glances([path])[path][1]

    assert len({digest(place) for place in (None, 0, 9, 495, 504, 990, 999)}) == 7
    assert digest(300) == digest(None), "between samples"
    monkeypatch.setattr(streamed, "WHOLE", 1000)
    assert digest(300) != digest(None)


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "pages"
    folder.mkdir()
    shards(folder, some(3, 9))
    return lambda data, buffer=5, validation=3: load_mixture(
        data.format(folder), GPT2, Streaming(buffer, validation)
    )


def test_a_mixture_streams_what_can_be_large_and_stores_the_rest(
    mixed: Callable[..., object], tmp_path: Path
) -> None:
    mixture = mixed("sample*1,{}*2")
    batches = mixture.batches(16, 6, seed=1)
    assert batches.per_epoch is None
    stored, streaming = mixture.describe(batches, 300)[1:]
    assert stored.endswith(" epochs")
    assert streaming.startswith("66.67% pages: ")
    assert "epochs" not in streaming
    batches.next()
    state = json.loads(json.dumps(batches.state()))
    assert state["places"][0] is None
    expected = [batches.next() for _ in range(5)]
    again = mixture.batches(16, 6, seed=1)
    again.restore(state)
    for batch in expected:
        np.testing.assert_array_equal(again.next(), batch)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tokens"]


def test_what_must_not_change_is_named(mixed: Callable[..., object]) -> None:
    saved = json.loads(json.dumps(mixed("{}").record()))
    for name, then, now, other in (
        ("stream_buffer", 5, 6, mixed("{}", 6)),
        ("stream_validation", 3, 4, mixed("{}", 5, 4)),
    ):
        assert other.agreement(saved)[name] == (then, now)
    assert all(then == now for then, now in mixed("{}").agreement(saved).values())
    stored = {key: value for key, value in saved.items() if key != "streaming"}
    assert mixed("{}").agreement(stored)["stream"] == (False, True)


def test_small_corpora_are_not_streamed_alone(mixed: Callable[..., object]) -> None:
    for name in ("sample",):
        with pytest.raises(ValueError, match=f"stream must be off with data {name}"):
            mixed(name)


def test_an_empty_validation_file_is_told_as_too_short(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "valid.jsonl").write_text("")
    data = load_mixture(str(tmp_path), GPT2, Streaming(5, 3))
    with pytest.raises(DataError, match=r"found validation 0: hold out more documents"):
        data.require(6)
