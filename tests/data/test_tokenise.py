"""Work in threads: results in order, few in memory, errors where they are waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.data import store, tokenise
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.tokenise import cores, in_order


@given(st.lists(st.integers(0, 3)), st.integers(1, 5))
def test_results_come_in_order_and_items_are_taken_as_they_are_needed(
    delays: list[int], workers: int
) -> None:
    taken = 0

    def items() -> Iterator[tuple[int, int]]:
        nonlocal taken
        for item in enumerate(delays):
            taken += 1
            yield item

    def work(item: tuple[int, int]) -> int:
        time.sleep(item[1] / 10_000)
        return item[0]

    for number, result in enumerate(in_order(work, items(), workers)):
        assert result == number
        assert taken <= number + 1 + 2 * workers
    assert taken == len(delays)


def test_an_error_of_a_thread_is_raised_in_its_turn() -> None:
    results = in_order(lambda x: 1 // x, [1, 1, 0, 1], 2)
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_an_error_of_the_items_comes_after_the_results_of_those_before_it() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise ValueError("no more")

    results = in_order(lambda x: x, items(), 4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no more"):
        next(results)


def test_all_threads_work_at_once() -> None:
    barrier = threading.Barrier(3)
    assert list(in_order(lambda _: barrier.wait(600) >= 0, range(3), 3)) == [True] * 3


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_tokens_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    for number in range(30):
        text = f"Document {number}, its words.\n\n" * (number * 7 % 31)
        (tmp_path / f"{number:02}.txt").write_text(text)
    monkeypatch.setattr(store, "BATCH", 100)
    monkeypatch.setattr(tokenise, "cores", lambda: workers)
    corpus = load_corpus(str(tmp_path), gpt2(), tmp_path / "cache")
    monkeypatch.undo()
    serial = []
    for number in range(30):
        if number != 19:
            text = (tmp_path / f"{number:02}.txt").read_text()
            serial += [gpt2().end_of_text, *gpt2().encode(text)] if text else []
    np.testing.assert_array_equal(corpus.train, serial[1:])


def test_there_is_a_core() -> None:
    assert cores() >= 1
