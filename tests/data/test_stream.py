"""A text read as it is needed: every document in every epoch, and any place of it found again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_pam.data import stream as module
from mlx_pam.data import streamed
from mlx_pam.data.batches import Batches
from mlx_pam.data.documents import reader
from mlx_pam.data.mixture import load_mixture
from mlx_pam.data.stream import EndlessText, StreamedWindows, digest
from mlx_pam.data.streamed import Streamed, Streaming, local_files, open_stream
from mlx_pam.data.tokenizer import gpt2
from mlx_pam.errors import DataError

GPT2 = gpt2()
END = GPT2.end_of_text


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny texts are not read a thousand times before the first window."""
    monkeypatch.setattr(module, "CHUNK", 100)


def shards(folder: Path, documents: list[list[str]]) -> Path:
    """A folder of JSON lines, every second file compressed."""
    for number, texts in enumerate(documents):
        raw = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path = folder / f"{number:02}.jsonl"
        if number % 2:
            path, raw = path.with_name(path.name + ".gz"), gzip.compress(raw)
        path.write_bytes(raw)
    return folder


def some(files: int, documents: int) -> list[list[str]]:
    return [
        [f"{file} {number}" + " word" * (number * 7 % 13) for number in range(documents)]
        for file in range(files)
    ]


def windows(
    folder: Path, seq_len: int = 6, buffer: int = 5, seed: int = 1, held_out: tuple[str, ...] = ()
) -> StreamedWindows:
    readers = [reader(path) for path in sorted(folder.iterdir())]
    text = EndlessText("x", readers, frozenset(map(digest, held_out)), GPT2, seed, 0)
    return StreamedWindows(text, seq_len, buffer)


def endless(tmp_path: Path, count: int, **settings: int) -> list[int]:
    """The first `count` windows put together again as the text that they were cut from."""
    stream = windows(tmp_path, **settings)
    number, seq_len = stream.buffer, stream.seq_len
    tokens: list[int] = []
    for block in range(count // number):
        draws = module.random_draws(number, stream.text.seed, block, 0, 1)
        rows = stream.take(block * number, number)[np.argsort(np.argsort(draws, kind="stable"))]
        if tokens:
            assert tokens[-1] == rows[0, 0]
        assert (rows[1:, 0] == rows[:-1, -1]).all()
        tokens += [*rows[0, :1]] * (not tokens) + rows[:, 1:].reshape(-1).tolist()
    assert len(tokens) == count * seq_len + 1
    return tokens


def texts_of(tokens: list[int]) -> list[str]:
    assert tokens[0] == END
    return GPT2.decode(tokens[1:]).split("<|endoftext|>")


def test_every_document_comes_once_in_every_epoch_and_files_in_other_orders(
    tmp_path: Path,
) -> None:
    documents = some(5, 8)
    found = texts_of(endless(shards(tmp_path, documents), 600))
    orders = []
    for epoch in range(len(found) // 40):
        read = found[epoch * 40 : (epoch + 1) * 40]
        order = [int(text.split()[0]) for text in read[::8]]
        assert read == [text for file in order for text in documents[file]]
        orders.append(tuple(order))
    assert len(orders) > 4
    assert len(set(orders)) > 2


@settings(max_examples=30)
@given(
    st.integers(1, 9), st.integers(1, 12), st.integers(1, 9), st.integers(0, 40), st.integers(0, 9)
)
def test_any_window_is_found_again_by_its_number_and_place(
    tmp_path_factory: pytest.TempPathFactory,
    seq_len: int,
    buffer: int,
    batch_size: int,
    step: int,
    ahead: int,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "found-again"
    if not folder.exists():
        folder.mkdir()
        shards(folder, some(3, 7))

    def batches() -> Batches:
        return Batches([windows(folder, seq_len, buffer)], [1], batch_size)

    whole = batches()
    for _ in range(step):
        whole.next()
    looked = whole.peek()
    state = json.loads(json.dumps(whole.state()))
    expected = [whole.next() for _ in range(ahead + 1)]
    np.testing.assert_array_equal(looked, expected[0])
    resumed = batches()
    resumed.restore(state)
    assert resumed.state() == state
    for batch in expected:
        np.testing.assert_array_equal(resumed.next(), batch)


def test_windows_do_not_depend_on_blocks_of_reading_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(tmp_path, some(4, 9))
    expected = windows(tmp_path).take(0, 50)
    for chunk, block, workers in ((1, 3, 1), (40, 7, 3)):
        monkeypatch.setattr(module, "CHUNK", chunk)
        monkeypatch.setattr("mlx_pam.data.files.BLOCK", block)
        monkeypatch.setattr("mlx_pam.data.tokenise.cores", lambda n=workers: n)
        np.testing.assert_array_equal(windows(tmp_path).take(0, 50), expected)


def test_windows_are_shuffled_by_the_seed_within_a_block(tmp_path: Path) -> None:
    shards(tmp_path, some(1, 30))
    one, two = (windows(tmp_path, buffer=20, seed=seed).take(0, 20) for seed in (1, 2))
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(*(rows[np.lexsort(rows.T)] for rows in (one, two)))


def test_long_texts_are_cut_into_passages_that_can_be_returned_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_pam.data.tokenizer.pieces.__defaults__", (20,))
    text = "".join(f"line {number}, its words\r\n" for number in range(300))
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt").write_bytes(b"short")
    found = texts_of(endless(tmp_path, 300, seq_len=20))
    assert found[:2] == [text.replace("\r\n", "\n"), "short"] or found[1:3] == [
        text.replace("\r\n", "\n"), "short",
    ]  # fmt: skip
    stream = windows(tmp_path, seq_len=20)
    stream.take(0, 42)
    resumed = windows(tmp_path, seq_len=20)
    resumed.go_to(42, stream.place(42))
    assert resumed.place(42)[2] > 1000
    np.testing.assert_array_equal(resumed.take(42, 30), stream.take(42, 30))


def test_nothing_but_held_out_documents_is_an_error(tmp_path: Path) -> None:
    shards(tmp_path, [["one", "two", ""]])
    stream = windows(tmp_path, held_out=("one", "two"))
    with pytest.raises(DataError, match="must hold documents beside those that are held out"):
        stream.take(0, 1)


def test_an_error_while_reading_ahead_is_raised_where_the_windows_are_taken(
    tmp_path: Path,
) -> None:
    shards(tmp_path, [["one two three " * 30, "four five six " * 30]])
    with (tmp_path / "00.jsonl").open("a") as file:
        file.write("no JSON\n")
    stream = windows(tmp_path)
    stream.take(0, 1)
    with pytest.raises(DataError, match=r"00\.jsonl must hold a JSON object a line"):
        stream.take(1, 200)


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
        f"{tmp_path}, 3 files, read as needed; validation: the first 3 documents held out, and "
        "copies of them"
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


def test_a_glance_sees_a_change_at_the_ends_and_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "SAMPLE", 10)
    path = tmp_path / "a.jsonl"
    seen = set()
    for place in (None, 0, 505, 999):
        raw = bytearray(b"x" * 1000)
        if place is not None:
            raw[place] = 0
        path.write_bytes(raw)
        seen.add(tuple(streamed._glance(path)))
    assert len(seen) == 4


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
