"""Windows of a text that is read as it is needed: never whole on the disk, shuffled in blocks.

Files are read one after another, in an order that seed and epoch decide, each document behind an
end-of-text token, and the tokens are cut into windows, without a rest at the end of an epoch. As
many windows as the buffer holds are a block, which is shuffled, used up, and followed by the next.
So a window is found again by the place in the files where its block begins.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mlx_pam.data.batches import random_draws
from mlx_pam.data.documents import Passage, Reader
from mlx_pam.data.tokenise import in_order
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import DataError

CHUNK = 1 << 18
"""Characters, about, that one thread encodes at a time."""


class Place(NamedTuple):
    """A token of the endless text."""

    epoch: int
    turn: int
    """How many files the epoch has read before this one."""
    passage: int
    """Where its passage begins in the file."""
    token: int
    """Its number in the passage."""


BEGIN = Place(0, 0, 0, 0)


@dataclass(frozen=True)
class EndlessText:
    """The documents of files, epoch after epoch, without those that are held out."""

    name: str
    readers: Sequence[Reader]
    held_out: frozenset[bytes]
    """`digest` of documents that are passed over, wherever they stand."""
    tokenizer: Tokenizer
    seed: int
    part: int

    def tokens(self, place: Place) -> Iterator[tuple[Place, np.ndarray]]:
        """The tokens from a place on, passage by passage, and where each array begins."""
        for encoded in in_order(self._encode, self._chunks(place)):
            for begin, ids in encoded:
                skipped = place.token if begin[:3] == place[:3] else 0
                yield begin._replace(token=skipped), ids[skipped:]

    def _encode(self, chunk: list[tuple[Place, Passage]]) -> list[tuple[Place, np.ndarray]]:
        return [(place, encode_passage(passage, self.tokenizer)) for place, passage in chunk]

    def _chunks(self, place: Place) -> Iterator[list[tuple[Place, Passage]]]:
        chunk, length = [], 0
        for each in self._passages(place):
            if chunk and each[0].epoch != chunk[0][0].epoch:  # a short text fills none
                yield chunk
                chunk, length = [], 0
            chunk.append(each)
            length += len(each[1].text)
            if length >= CHUNK:
                yield chunk
                chunk, length = [], 0

    def _passages(self, place: Place) -> Iterator[tuple[Place, Passage]]:
        while True:
            is_whole, is_empty = place == Place(place.epoch, *BEGIN[1:]), True
            order = np.argsort(
                random_draws(len(self.readers), self.seed, place.epoch, self.part), kind="stable"
            )
            for turn in range(place.turn, len(order)):
                reader = self.readers[order[turn]]
                for passage in reader.read(place.passage, self.tokenizer.pieces):
                    if passage.text and not self._is_held_out(passage):
                        is_empty = False
                        yield Place(place.epoch, turn, passage.place, 0), passage
                place = place._replace(passage=0)
            if is_whole and is_empty:
                raise DataError(f"{self.name} must hold documents beside those that are held out")
            place = Place(place.epoch + 1, *BEGIN[1:])

    def _is_held_out(self, passage: Passage) -> bool:
        return bool(self.held_out) and digest(passage.text) in self.held_out


def digest(text: str) -> bytes:
    """What a document is known by."""
    return hashlib.sha256(text.encode()).digest()


def encode_passage(passage: Passage, tokenizer: Tokenizer) -> np.ndarray:
    """Its tokens, behind an end-of-text token where a document begins."""
    pieces = enumerate(tokenizer.pieces([passage.text]))
    ids = [tokenizer.encode_piece(piece, passage.begins and n == 0) for n, piece in pieces]
    if passage.begins:
        ids.insert(0, np.array([tokenizer.end_of_text], tokenizer.dtype))
    return np.concatenate(ids)


class StreamedWindows:
    """Windows of T + 1 tokens of an endless text, see `mlx_pam.data.batches.Windows`.

    The next block is read while this one is in use.
    """

    per_epoch = None

    def __init__(self, text: EndlessText, seq_len: int, buffer: int) -> None:
        self.text, self.seq_len, self.buffer = text, seq_len, buffer
        self._places = {0: BEGIN}
        """Where blocks begin: those that may be asked for."""
        self._number, self._block = -1, np.empty(0)
        self._blocks: Iterator[tuple[np.ndarray, Place]] | None = None
        self._next: Future[tuple[np.ndarray, Place]] | None = None

    def take(self, first: int, count: int) -> np.ndarray:
        """Windows from number `first` on, int32 [count, T + 1]."""
        for number in [number for number in self._places if number < first // self.buffer]:
            del self._places[number]
        rows = []
        while count > 0:
            number, begin = divmod(first, self.buffer)
            rows.append(self._windows(number)[begin : begin + count])
            first, count = first + len(rows[-1]), count - len(rows[-1])
        return np.concatenate(rows).astype(np.int32)

    def place(self, number: int) -> list[int]:
        """Where the block of a window begins; of the next window, or one not long ago taken."""
        return [*self._places[number // self.buffer]]

    def go_to(self, number: int, place: list[int]) -> None:
        """Continue at a window's number, by the place of its block."""
        if self._next is not None:
            self._next.exception()  # what is read ahead is waited for and dropped
        self._places = {number // self.buffer: Place(*place)}
        self._number, self._blocks, self._next = number // self.buffer - 1, None, None

    def _windows(self, number: int) -> np.ndarray:
        """A block, `[buffer, T + 1]`: the one in use or one after it."""
        if number < self._number:
            raise ValueError(f"block {number} is read already: go_to returns to it")
        while self._number < number:
            if self._blocks is None:
                self._number = min(self._places) - 1
                self._blocks = self._read(self._number + 1, self._places[self._number + 1])
                self._block, place = next(self._blocks)  # here, where progress can be shown
            else:
                self._block, place = self._next.result()
            self._number += 1
            self._places[self._number + 1] = place
            self._next = _in_background(self._blocks)
        return self._block

    def _read(self, number: int, place: Place) -> Iterator[tuple[np.ndarray, Place]]:
        """Blocks from a number on, each with the place where the next one begins."""
        size = self.buffer * self.seq_len
        read: list[tuple[Place, np.ndarray]] = []
        length = 0
        for begin, ids in self.text.tokens(place):
            read.append((begin, ids))
            length += len(ids)
            while length > size:
                tokens = np.concatenate([ids for _, ids in read])[: size + 1]
                read, length = _without(read, size), length - size
                yield self._shuffled(tokens, number), read[0][0]
                number += 1

    def _shuffled(self, tokens: np.ndarray, number: int) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self.seq_len + 1)
        draws = random_draws(self.buffer, self.text.seed, number, self.text.part, 1)
        return windows[:: self.seq_len][np.argsort(draws, kind="stable")]


def _without(read: list[tuple[Place, np.ndarray]], count: int) -> list[tuple[Place, np.ndarray]]:
    """What is left without the first `count` tokens, fewer than there are."""
    for number, (place, ids) in enumerate(read):
        if count < len(ids):
            rest = place._replace(token=place.token + count), ids[count:]
            return [rest, *read[number + 1 :]]
        count -= len(ids)
    raise AssertionError("there are more tokens than that")


def _in_background(blocks: Iterator[tuple[np.ndarray, Place]]) -> Future[tuple[np.ndarray, Place]]:
    """The next block, read by a thread of its own that does not keep the process alive."""
    future: Future[tuple[np.ndarray, Place]] = Future()

    def read() -> None:
        try:
            future.set_result(next(blocks))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return future
