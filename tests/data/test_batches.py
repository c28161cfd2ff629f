"""Windows: each epoch a fixed shuffle, the cursor a number, validation complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.data.batches import Batches, StoredWindows, require_tokens, validation_batches
from mlx_pam.data.corpus import Corpus
from mlx_pam.errors import ConfigError, DataError

SIZES = {
    "length": st.integers(2, 200),
    "seq_len": st.integers(1, 40),
    "batch_size": st.integers(1, 9),
}


def tokens(length: int) -> np.ndarray:
    """Each token is its own place."""
    return np.arange(length, dtype=np.uint16)


def stored(tokens: np.ndarray, seq_len: int, batch_size: int, seed: int) -> Batches:
    """Batches of one corpus."""
    return Batches([StoredWindows(tokens, seq_len, seed)], [1], batch_size)


def epoch(length: int, seq_len: int, seed: int, number: int) -> np.ndarray:
    """The first token of every window of an epoch."""
    windows = StoredWindows(tokens(length), seq_len, seed)
    return windows.take(number * windows.per_epoch, windows.per_epoch)[:, 0]


@given(**SIZES, seed=st.integers(0, 2**64), cursor=st.integers(0, 500))
def test_batch_is_windows_of_consecutive_tokens(
    length: int, seq_len: int, batch_size: int, seed: int, cursor: int
) -> None:
    if length <= seq_len:
        with pytest.raises(DataError, match=f"at least {seq_len + 1}, a window, got {length}"):
            stored(tokens(length), seq_len, batch_size, seed)
        return
    batches = stored(tokens(length), seq_len, batch_size, seed)
    batches.restore({"cursor": cursor})
    batch = batches.next()
    assert batch.shape == (batch_size, seq_len + 1)
    assert batch.dtype == np.int32
    assert (np.diff(batch) == 1).all()
    assert batch.max() < length
    assert batches.cursor == cursor + batch_size


def test_cursor_alone_continues_the_stream_across_epochs() -> None:
    whole = stored(tokens(100), 8, 5, seed=3)
    stream = [whole.next() for _ in range(12)]
    assert whole.per_epoch == 12
    resumed = stored(tokens(100), 8, 5, seed=3)
    for step in (7, 2, 11):  # in any order: nothing but the cursor is carried
        resumed.restore({"cursor": 5 * step})
        np.testing.assert_array_equal(resumed.next(), stream[step])
        assert resumed.state() == {"cursor": 5 * (step + 1)}


def test_looking_at_the_next_batch_does_not_take_it() -> None:
    batches = stored(tokens(100), 8, 5, seed=3)
    looked = batches.peek()
    assert batches.cursor == 0
    np.testing.assert_array_equal(batches.next(), looked)
    assert batches.cursor == 5
    assert not np.array_equal(batches.next(), looked)


def test_windows_do_not_depend_on_the_batch_size() -> None:
    streams = [
        np.concatenate([batches.next() for _ in range(60 // size)])
        for size in (1, 3, 4, 5)
        for batches in [stored(tokens(100), 8, size, seed=3)]
    ]
    for stream in streams[1:]:
        np.testing.assert_array_equal(stream, streams[0])


@pytest.mark.parametrize("length", [97, 100, 104])
def test_epoch_covers_the_text_but_for_less_than_a_window(length: int) -> None:
    for number in range(20):
        starts = np.sort(epoch(length, 8, seed=1, number=number))
        assert len(starts) == (length - 1) // 8
        assert (np.diff(starts) <= 8).all()
        assert (np.diff(starts)[:-1] == 8).all()
        assert starts[0] < 8
        assert starts[-1] + 8 > length - 1 - 8


def test_epochs_differ_in_order_and_in_cuts_and_seeds_in_both() -> None:
    epochs = [epoch(1001, 10, seed, number) for seed in (0, 1) for number in range(5)]
    assert len({tuple(starts) for starts in epochs}) == len(epochs)
    assert len({starts.min() for starts in epochs}) > 4
    assert not any((np.diff(starts) > 0).all() for starts in epochs)


def test_order_is_the_same_in_every_version() -> None:
    assert epoch(60, 7, seed=5, number=2).tolist() == [21, 42, 35, 49, 0, 28, 7, 14]


def test_batches_of_a_memory_map_are_arrays_in_memory(tmp_path: Path) -> None:
    tokens(50).tofile(tmp_path / "a.bin")
    mapped = np.memmap(tmp_path / "a.bin", np.uint16, "r")
    assert type(stored(mapped, 8, 2, 0).next()) is np.ndarray
    assert all(type(array) is np.ndarray for array in next(validation_batches(mapped, 8, 2)))


@given(**SIZES)
def test_validation_counts_each_token_but_the_first_once(
    length: int, seq_len: int, batch_size: int
) -> None:
    targets = []
    for batch, mask in validation_batches(tokens(length), seq_len, batch_size):
        assert batch.shape == (batch_size, seq_len + 1)
        assert mask.shape == (batch_size, seq_len)
        assert batch.dtype == np.int32
        assert mask.dtype == bool
        assert (np.diff(batch)[mask] == 1).all()
        assert mask.any()
        targets += batch[:, 1:][mask].tolist()
    assert targets == list(range(1, length))


def corpus(train: int, validation: int) -> Corpus:
    return Corpus(
        name="small",
        description="",
        fingerprint="",
        bytes={"train": train, "validation": validation},
        train=tokens(train),
        validation=tokens(validation),
    )


@pytest.mark.parametrize(("train", "validation"), [(8, 9), (9, 8), (0, 0)])
def test_short_splits_are_told_with_tokens_found_and_needed(train: int, validation: int) -> None:
    require_tokens(corpus(9, 9), 8)
    said = f"must hold 9 tokens, found train {train}, validation {validation}"
    with pytest.raises(DataError, match=said):
        require_tokens(corpus(train, validation), 8)


def test_only_the_splits_that_are_used_must_be_long() -> None:
    require_tokens(corpus(0, 9), 8, ["validation"])


@pytest.mark.parametrize("bad", [{"seq_len": 0}, {"batch_size": 0}, {"seed": -1}])
def test_impossible_sizes_are_named(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        stored(tokens(50), **{"seq_len": 8, "batch_size": 2, "seed": 0} | bad)
