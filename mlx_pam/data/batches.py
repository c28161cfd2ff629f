"""Windows of tokens: shuffled without end for training, in order and complete for validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_pam.config import require_count
from mlx_pam.errors import DataError

if TYPE_CHECKING:
    from mlx_pam.data.corpus import Corpus


def require_tokens(
    corpus: Corpus, seq_len: int, splits: Sequence[str] = ("train", "validation")
) -> None:
    """Raise a `DataError` with tokens found and needed unless each split holds a whole window."""
    needed = seq_len + 1
    counts = {split: len(corpus.split(split)) for split in splits}
    if min(counts.values()) < needed:
        found = ", ".join(f"{split} {count:,}" for split, count in counts.items())
        raise DataError(
            f"{corpus.name} is too short for seq_len {seq_len}: each split must hold {needed:,} "
            f"tokens, found {found}: take more text or a smaller seq_len"
        )


class Batches:
    """Batches of windows of T + 1 tokens, without end, in an order that seed and epoch decide.

    Each epoch shifts the windows by a phase of its own, 0 to T - 1, and shuffles them. The last
    window is moved back where the shift would take it past the end, so that their number is the
    same in every epoch: all (N - 1) // T windows that fit N tokens. A batch may take its last
    windows from the next epoch, and `cursor` alone says where the stream stands.
    """

    def __init__(self, tokens: np.ndarray, seq_len: int, batch_size: int, seed: int) -> None:
        require_count("seq_len", seq_len)
        require_count("batch_size", batch_size)
        require_count("seed", seed, least=0)
        if len(tokens) <= seq_len:
            raise DataError(f"tokens must be at least {seq_len + 1}, a window, got {len(tokens)}")
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.windows_per_epoch: int = (len(tokens) - 1) // seq_len
        self.cursor = 0
        """Windows consumed so far; set it to go on from there."""
        self._tokens = tokens
        self._epoch = -1
        self._starts = np.empty(0, np.int64)

    def next(self) -> np.ndarray:
        """The next batch, int32 [B, T + 1]."""
        numbers = range(self.cursor, self.cursor + self.batch_size)
        starts = np.array([self._start(number) for number in numbers])
        self.cursor += self.batch_size
        return _windows(self._tokens, starts, self.seq_len)

    def _start(self, number: int) -> int:
        epoch, place = divmod(number, self.windows_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._shuffled(epoch)
        return self._starts[place]

    def _shuffled(self, epoch: int) -> np.ndarray:
        # Raw draws, since NumPy keeps these, but not its shuffles, the same in every version.
        draws = np.random.PCG64([self.seed, epoch]).random_raw(self.windows_per_epoch + 1)
        phase = int(draws[0] % self.seq_len)
        last = len(self._tokens) - 1 - self.seq_len
        starts = np.minimum(phase + self.seq_len * np.arange(self.windows_per_epoch), last)
        return starts[np.argsort(draws[1:], kind="stable")]


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


def _windows(tokens: np.ndarray, starts: np.ndarray, seq_len: int) -> np.ndarray:
    """Tokens at starts .. starts + T, int32 [B, T + 1]."""
    return tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int32)
