"""Tokens on disk: one folder per text, tokenizer and settings, complete or absent, never stale."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from mlx_pam.data.building import in_one_step
from mlx_pam.data.copies import Apart, Document
from mlx_pam.data.progress import Progress
from mlx_pam.data.source import Source, Split
from mlx_pam.data.splits import NAMES
from mlx_pam.data.tokenise import in_order
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import DataError

FORMAT = 1
"""Part of every fingerprint: to be raised when the same text shall become other tokens."""

BATCH = 1 << 18
"""Characters, about, that one thread encodes at a time."""

TYPES = (np.uint16, np.uint32)
"""Of tokens on the disk."""

FOLDER = "tokens"
RECORD = "corpus.json"


@dataclass(frozen=True)
class Stored:
    """Tokens of each split as arrays on disk, and the UTF-8 bytes of their text."""

    fingerprint: str
    tokens: Mapping[str, np.ndarray]
    bytes: Mapping[str, int]
    note: str
    """What is to be told of the documents, behind their description."""
    reused: Path | None = None
    """The folder, if the tokens were there already."""


class Piece(NamedTuple):
    """A document, or a part of one."""

    text: str
    begins: bool
    """Whether it is the first of its document."""
    joined: bool
    """Whether an end-of-text token stands before it."""


def fingerprint(source: Source, tokenizer: Tokenizer) -> str:
    """A hex digest over text, tokenizer and settings."""
    facts = {"format": FORMAT, "tokenizer": tokenizer.fingerprint, "text": source.identity}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def store(source: Source, tokenizer: Tokenizer, cache: Path, progress: bool) -> Stored:
    """The tokens of a source, from the cache if they are there, else tokenised into it."""
    digest = fingerprint(source, tokenizer)
    folder = cache / FOLDER / digest[:32]
    if stored := _open(folder, digest):
        with contextlib.suppress(OSError):  # of a cache that is another user's
            os.utime(folder / RECORD)  # when it was used last
        return dataclasses.replace(stored, reused=folder)
    splits = source.splits()
    try:
        with in_one_step(folder, lambda: _open(folder, digest) is not None) as building:
            record = {"fingerprint": digest, "name": source.name, "text": source.description}
            record["tokenizer"] = tokenizer.name
            record |= _tokenise(source, splits, tokenizer, building, progress)
            with (building / RECORD).open("w", encoding="utf-8") as file:
                json.dump(record, file)
                _sync(file)
    except OSError as error:
        raise DataError(
            f"tokens cannot be kept in {folder.parent}: {error.strerror or error}: make room there "
            "or set MLX_PAM_CACHE to another folder"
        ) from error
    stored = _open(folder, digest)
    if stored is None:
        raise DataError(f"{folder} was changed while it was written: run again")
    return stored


def _open(folder: Path, digest: str) -> Stored | None:
    """What `store` wrote of a text, if all of it is there, and nothing else."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
        dtype = np.dtype(record["dtype"])
        if dtype not in TYPES:  # bytes that a record calls Python objects must not become such
            return None
        tokens = {}
        for split, count in record["tokens"].items():
            file = folder / f"{split}.bin"
            if file.stat().st_size != count * dtype.itemsize:
                return None
            tokens[split] = np.memmap(file, dtype, "r") if count else np.empty(0, dtype)
        if record["fingerprint"] != digest or not _is_of_splits(record):  # copied, or changed
            return None
        return Stored(digest, tokens, record["bytes"], record["note"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _is_of_splits(record: Mapping[str, Any]) -> bool:
    """Whether a record tells of train, validation and perhaps test, and of each its bytes."""
    names, sizes = set(record["tokens"]), record["bytes"]
    counted = all(type(size) is int and size >= 0 for size in sizes.values())
    known = {"train", "validation"} <= names <= set(NAMES) and names == set(sizes)
    return known and counted and isinstance(record["note"], str)


def _tokenise(
    source: Source,
    splits: Mapping[str, Split],
    tokenizer: Tokenizer,
    folder: Path,
    progress: bool,
) -> dict[str, Any]:
    encode = partial(_encode, tokenizer=tokenizer)
    apart = Apart(leave_out=splits["train"].without_copies)
    counts, sizes = dict.fromkeys(splits, 0), dict.fromkeys(splits, 0)
    for split in sorted(splits, key=lambda split: split == "train"):  # what is held out comes first
        part = splits[split]
        documents = (apart.train if split == "train" else apart.held_out)(part.documents)
        what = f"tokenising {source.name}, {split}"
        with (folder / f"{split}.bin").open("wb") as file, Progress(what, part.size, progress) as p:
            for ids, size in in_order(encode, _batches(_joined(documents, tokenizer))):
                ids.tofile(file)
                counts[split] += len(ids)
                sizes[split] += size
                p.advance(size)
            _sync(file)
    return {
        "dtype": tokenizer.dtype.name,
        "tokens": counts,
        "bytes": sizes,
        "note": splits["train"].note + apart.note(),
    }


def _batches(joined: Iterable[Piece]) -> Iterator[list[Piece]]:
    """What `_joined` gives, in lists of about `BATCH` characters."""
    batch: list[Piece] = []
    length = 0
    for piece in joined:
        batch.append(piece)
        length += len(piece.text)
        if length >= BATCH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _joined(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[Piece]:
    """The pieces of all documents; empty ones leave no trace."""
    is_first = True
    for document in documents:
        for number, text in enumerate(tokenizer.pieces(document)):
            yield Piece(text, number == 0, number == 0 and not is_first)
            is_first = False


def _encode(batch: list[Piece], tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """The tokens of a batch, and the bytes of its text."""
    joint = np.array([tokenizer.end_of_text], tokenizer.dtype)
    ids = []
    for piece in batch:
        ids += [joint] * piece.joined
        ids.append(tokenizer.encode_piece(piece.text, piece.begins))
    return np.concatenate(ids), sum(len(piece.text.encode()) for piece in batch)


def _sync(file: IO) -> None:
    file.flush()
    os.fsync(file.fileno())
