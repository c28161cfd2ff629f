"""Windows of tokens: shuffled without end for training, in order and complete for validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mlx_pam.config import require_count
from mlx_pam.data.interleave import Interleave
from mlx_pam.errors import DataError

if TYPE_CHECKING:
    from mlx_pam.data.corpus import Corpus
    from mlx_pam.data.streamed import Streamed


def require_tokens(
    corpus: Corpus | Streamed, seq_len: int, splits: Sequence[str] = ("train", "validation")
) -> None:
    """Raise a `DataError` with tokens found and needed unless each split holds a whole window."""
    needed = seq_len + 1
    counts = {split: corpus.tokens[split] for split in splits}
    if min(counts.values()) < needed:
        found = ", ".join(f"{split} {count:,}" for split, count in counts.items())
        raise DataError(
            f"{corpus.name} is too short for seq_len {seq_len}: each split must hold {needed:,} "
            f"tokens, found {found}: {corpus.remedy} or take a smaller seq_len"
        )


class Windows(Protocol):
    """The windows of one part of a mixture, without end."""

    per_epoch: int | None
    """Windows after which the text begins again; None where that is not known."""

    def take(self, first: int, count: int) -> np.ndarray:
        """Windows from number `first` on, int32 [count, T + 1]."""

    def place(self, number: int) -> Any:
        """What `go_to` needs beside the number of the next window, as JSON can hold it."""

    def go_to(self, number: int, place: Any) -> None:
        """Continue at a window's number."""


class StoredWindows:
    """Windows of T + 1 stored tokens, in an order that seed and epoch decide.

    Each epoch shifts the windows by a phase of its own, 0 to T - 1, and shuffles them. The last
    window is moved back where the shift would take it past the end, so that their number is the
    same in every epoch: all (N - 1) // T windows that fit N tokens.
    """

    def __init__(self, tokens: np.ndarray, seq_len: int, seed: int, part: int = 0) -> None:
        require_count("seq_len", seq_len)
        require_count("seed", seed, least=0)
        if len(tokens) <= seq_len:
            raise DataError(f"tokens must be at least {seq_len + 1}, a window, got {len(tokens)}")
        self.seq_len = seq_len
        self.per_epoch: int = (len(tokens) - 1) // seq_len
        self._tokens = tokens
        self._seed, self._part = seed, part
        self._epoch = -1
        self._starts = np.empty(0, np.int64)

    def take(self, first: int, count: int) -> np.ndarray:
        starts = np.array([self._start(number) for number in range(first, first + count)])
        return _windows(self._tokens, starts, self.seq_len)

    def place(self, number: int) -> None:
        """Nothing: any window is found by its number."""

    def go_to(self, number: int, place: None) -> None:
        pass

    def _start(self, number: int) -> int:
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._shuffled(epoch)
        return self._starts[place]

    def _shuffled(self, epoch: int) -> np.ndarray:
        draws = random_draws(self.per_epoch + 1, self._seed, epoch, self._part)
        phase = int(draws[0] % self.seq_len)
        last = len(self._tokens) - 1 - self.seq_len
        starts = np.minimum(phase + self.seq_len * np.arange(self.per_epoch), last)
        return starts[np.argsort(draws[1:], kind="stable")]


class Batches:
    """Batches of windows, without end, of parts that take turns by their weights.

    A batch may take its last windows from the next epoch of a part, so that no remainder is
    dropped. `state` says where the stream stands; of stored tokens the cursor alone is enough.
    """

    def __init__(self, parts: Sequence[Windows], weights: Sequence[int], batch_size: int) -> None:
        require_count("batch_size", batch_size)
        self.batch_size = batch_size
        self.parts = parts
        self._order = Interleave(weights)
        self._cursor = 0
        self._peeked: np.ndarray | None = None

    @property
    def cursor(self) -> int:
        """Windows consumed so far."""
        return self._cursor

    @property
    def per_epoch(self) -> int | None:
        """Windows of all parts together; None where that is not known."""
        counts = [part.per_epoch for part in self.parts]
        return None if None in counts else sum(counts)

    def epochs(self, windows: int) -> list[float | None]:
        """How often the first `windows` windows go through each part."""
        counts = self._order.counts(windows)
        return [
            part.per_epoch and count / part.per_epoch
            for part, count in zip(self.parts, counts, strict=True)
        ]

    def next(self) -> np.ndarray:
        """The next batch, int32 [B, T + 1]."""
        batch = self.peek()
        self._peeked = None
        self._cursor += self.batch_size
        return batch

    def peek(self) -> np.ndarray:
        """The next batch, which stays the next."""
        if self._peeked is None:
            turns = self._order.turns(self._cursor, self.batch_size)  # [B]
            firsts = self._order.counts(self._cursor)
            rows = [
                self.parts[part].take(firsts[part], int((turns == part).sum()))
                for part in np.unique(turns)
            ]
            place = np.argsort(np.argsort(turns, kind="stable"))  # of each window in the rows
            self._peeked = np.concatenate(rows)[place]
        return self._peeked

    def state(self) -> dict[str, Any]:
        """The cursor, and the places of parts that need one, as JSON can hold them."""
        firsts = self._order.counts(self._cursor)
        places = [part.place(first) for part, first in zip(self.parts, firsts, strict=True)]
        found = {"cursor": self._cursor}
        return found if all(place is None for place in places) else found | {"places": places}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as the batches did from which `state` came."""
        self._cursor, self._peeked = state["cursor"], None
        firsts = self._order.counts(self._cursor)
        places = state.get("places", [None] * len(self.parts))
        for part, first, place in zip(self.parts, firsts, places, strict=True):
            part.go_to(first, place)


def validation_batches(
    tokens: np.ndarray, seq_len: int, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Windows int32 [B, T + 1] in order, and which targets count, bool [B, T].

    Every token but the first is a target that counts exactly once, whatever the batch size. The
    last window and the last batch are filled up with zeros that do not count.
    """
    require_count("seq_len", seq_len)
    require_count("batch_size", batch_size)
    targets = len(tokens) - 1
    places = np.arange(seq_len)
    for first in range(0, targets, seq_len * batch_size):
        starts = first + seq_len * np.arange(batch_size)
        mask = starts[:, None] + places < targets  # [B, T]
        part = np.zeros((batch_size * seq_len) + 1, np.int32)
        found = tokens[first : first + len(part)]
        part[: len(found)] = found
        yield _windows(part, starts - first, seq_len), mask


def random_draws(count: int, *key: int) -> np.ndarray:
    """Raw draws that a key of whole numbers decides: NumPy keeps these the same in every version,
    but not its shuffles. uint64 [count]."""
    return np.random.PCG64(list(key)).random_raw(count)


def _windows(tokens: np.ndarray, starts: np.ndarray, seq_len: int) -> np.ndarray:
    """Tokens at starts .. starts + T, int32 [B, T + 1]."""
    return tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int32)
