"""Corpora take turns: exact shares of every stretch, epochs of their own, one number to resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.cache import cache_folder
from mlx_pam.data.batches import Batches, StoredWindows
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.interleave import Interleave
from mlx_pam.data.mixture import Mixture, load_mixture
from mlx_pam.errors import DataError

WEIGHTS = st.lists(st.integers(1, 50) | st.integers(1, 10**9), min_size=1, max_size=6)


@given(WEIGHTS, st.integers(0, 10**12))
def test_every_part_has_had_its_share_after_any_number_of_windows(
    weights: list[int], number: int
) -> None:
    counts = Interleave(weights).counts(number)
    assert sum(counts) == number
    total = sum(weights)
    for count, weight in zip(counts, weights, strict=True):
        off = abs(count * total - weight * number)  # in windows, times the total
        assert 2 * off <= total + len(weights) * weight


@given(WEIGHTS, st.integers(0, 10**6))
def test_shares_are_exact_after_whole_rounds(weights: list[int], rounds: int) -> None:
    found = Interleave(weights).counts(rounds * sum(weights))
    assert found == [rounds * weight for weight in weights]


@given(WEIGHTS, st.integers(0, 3000), st.integers(1, 40))
def test_turns_are_a_function_of_the_number_of_the_window(
    weights: list[int], first: int, count: int
) -> None:
    order = Interleave(weights)
    turns = order.turns(first, count)
    before, after = order.counts(first), order.counts(first + count)
    taken = np.bincount(turns, minlength=len(weights))
    assert [b + t for b, t in zip(before, taken, strict=True)] == after
    singly = [order.turns(first + number, 1)[0] for number in range(count)]
    assert turns.tolist() == singly


def test_turns_by_hand() -> None:
    assert Interleave([3, 7]).turns(0, 10).tolist() == [1, 0, 1, 1, 0, 1, 1, 1, 0, 1]
    assert Interleave([1, 1, 2]).turns(0, 8).tolist() == [2, 0, 1, 2, 2, 0, 1, 2]


def mixed(lengths: list[int], weights: list[int], batch_size: int, seed: int = 3) -> Batches:
    """Windows of 4 tokens; a token says which part it is of and where in it."""
    parts = [
        StoredWindows(np.arange(length) + 1000 * number, 4, seed, number)
        for number, length in enumerate(lengths)
    ]
    return Batches(parts, weights, batch_size)


@given(
    st.lists(st.tuples(st.integers(5, 60), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(0, 60),
)
def test_any_cursor_restores_the_stream(
    parts: list[tuple[int, int]], batch_size: int, step: int
) -> None:
    lengths, weights = zip(*parts, strict=True)
    whole = mixed(lengths, weights, batch_size)
    stream = [whole.next() for _ in range(step + 2)]
    resumed = mixed(lengths, weights, batch_size)
    resumed.restore({"cursor": step * batch_size})
    np.testing.assert_array_equal(resumed.next(), stream[step])
    np.testing.assert_array_equal(resumed.next(), stream[step + 1])
    assert resumed.state() == whole.state()
    singly = mixed(lengths, weights, 1)
    rows = [singly.next()[0] for _ in range((step + 2) * batch_size)]
    np.testing.assert_array_equal(np.concatenate(stream), rows)


def test_each_part_goes_through_epochs_of_its_own() -> None:
    """Every window of a part is seen once before one is seen again, whatever its neighbours do."""
    batches = mixed([41, 101], [3, 1], batch_size=7)
    rows = np.concatenate([batches.next() for _ in range(60)])
    for part, per_epoch in ((0, 10), (1, 25)):
        own = rows[rows[:, 0] // 1000 == part] % 1000
        assert len(own) == [315, 105][part]
        alone = StoredWindows(np.arange([41, 101][part]), 4, 3, part)
        assert alone.per_epoch == per_epoch
        np.testing.assert_array_equal(own, alone.take(0, len(own)))
    assert batches.epochs(420) == [31.5, 4.2]
    assert batches.per_epoch == 35


def test_parts_are_shuffled_each_in_its_own_way() -> None:
    first, second = (StoredWindows(np.arange(401), 4, 3, part).take(0, 100) for part in (0, 1))
    assert not np.array_equal(first, second)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two folders of documents, mixed."""
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "cache"))
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        for number in range(20):
            (tmp_path / name / f"{number:02}.txt").write_text(f"{name} {number}\n" * 9)
    return f"{tmp_path}/left*1,{tmp_path}/right*3"


def load(data: str) -> Mixture:
    return load_mixture(data, gpt2())


def test_mixture_of_one_is_the_corpus(two: str) -> None:
    path = two.partition("*")[0]
    alone = load(path)
    assert alone.name == alone.parts[0].corpus.name == "left"
    assert alone.fingerprint == alone.parts[0].corpus.fingerprint
    record = alone.record()
    assert list(record.pop("files")["left"]) == [f"{number:02}.txt" for number in range(20)]
    assert record == {"name": "left", "fingerprint": alone.fingerprint}
    batches = alone.batches(8, 2, seed=1)
    windows = StoredWindows(alone.parts[0].corpus.train, 8, seed=1)
    np.testing.assert_array_equal(batches.next(), windows.take(0, 2))


def test_description_tells_tokens_and_epochs_of_each_part(two: str) -> None:
    mixture = load(two)
    batches = mixture.batches(8, 4, seed=1)
    first, left, right = mixture.describe(batches, windows=400)
    per_epoch = [part.corpus.windows(8, 1, 0).per_epoch for part in mixture.parts]
    assert first == "2 corpora take turns"
    for line, part, count, each in zip(
        (left, right), mixture.parts, (100, 300), per_epoch, strict=True
    ):
        train, validation = (f"{part.corpus.tokens[split]:,}" for split in ("train", "validation"))
        assert line == (
            f"{count // 4}% {part.label}: {part.corpus.description}; "
            f"tokens: train {train}, validation {validation}; {count / each:.3g} epochs"
        )
    assert mixture.tokens["train"] == sum(len(part.corpus.train) for part in mixture.parts)


def test_validation_loss_is_the_mean_by_share(two: str) -> None:
    assert load(two).mean_loss({"left": 2.0, "right": 4.0}) == 3.5


def test_fingerprint_follows_texts_and_weights_in_lowest_terms(two: str, tmp_path: Path) -> None:
    mixture = load(two)
    same = load(two.replace("*1", "*0.5").replace("*3", "*1.5"))
    assert same.record() == mixture.record()
    other = load(two.replace("*3", "*2"))
    assert other.fingerprint != mixture.fingerprint
    assert other.agreement(mixture.record())["data"] == ("1 left + 3 right", "1 left + 2 right")


def test_files_whose_text_changed_are_named(two: str, tmp_path: Path) -> None:
    saved = json.loads(json.dumps(load(two).record()))
    assert load(two).changed(saved) is None
    right = tmp_path / "right"
    (right / "00.txt").write_text("changed")
    (right / "01.txt").rename(right / "20.txt")
    told = "changed: 00.txt, new: 20.txt, missing: 01.txt"
    changed = load(two)
    assert changed.changed(saved) == f"right ({told})"
    assert all(then == now for then, now in changed.agreement(saved).values())
    del saved["files"]
    assert changed.changed(saved) == "right (which of its files is not recorded)"


def test_tokens_that_are_reused_are_told(two: str) -> None:
    path = two.partition("*")[0]
    first, second = load(path), load(path)
    batches = first.batches(8, 4, seed=1)
    assert ", reused from" not in first.describe(batches, 1)[0]
    (line,) = second.describe(batches, 1)
    (folder,) = (cache_folder() / "tokens").iterdir()
    assert line == f"{first.describe(batches, 1)[0]}, reused from {folder}"


def test_parts_of_one_name_are_told_apart(two: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "right").rename(tmp_path / "in" / "left")
    data = f"{tmp_path}/left*1,{tmp_path}/in/left*1"
    assert [part.label for part in load(data).parts] == [f"{tmp_path}/left", f"{tmp_path}/in/left"]


def test_part_that_is_too_short_is_named(two: str) -> None:
    with pytest.raises(DataError, match=r"left is too short for seq_len 900: .*: take more text"):
        load(two).require(900)
