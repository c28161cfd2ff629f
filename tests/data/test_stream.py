"""A text read as it is needed: every document in every epoch, and any place of it found again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from corpora import GPT2, shards, some, texts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_pam.data import stream as module
from mlx_pam.data.batches import Batches
from mlx_pam.data.documents import reader
from mlx_pam.data.stream import EndlessText, StreamedWindows, digest
from mlx_pam.errors import DataError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny texts are not read a thousand times before the first window."""
    monkeypatch.setattr(module, "CHUNK", 100)


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
    monkeypatch.setattr("mlx_pam.data.gpt2.pieces.__defaults__", (20, None))
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


def test_a_text_shorter_than_a_chunk_is_read_once_for_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1000)
    (tmp_path / "short.txt").write_text("one two")
    text = windows(tmp_path).text
    chunks = text._chunks(module.BEGIN)
    for epoch in range(3):
        ((place, passage),) = next(chunks)
        assert (place.epoch, passage.text) == (epoch, "one two")
