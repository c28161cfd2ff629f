"""Tokens on disk: one folder per text, tokenizer and settings, complete or absent, never stale."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from mlx_pam.data.source import Document, Source, Split
from mlx_pam.data.tokenizer import Tokenizer, pieces
from mlx_pam.errors import DataError

FORMAT = 1
"""Part of every fingerprint: to be raised when the same text shall become other tokens."""

BATCH = 1 << 22
"""Characters, about, that are encoded together."""

RECORD = "corpus.json"


@dataclass(frozen=True)
class Stored:
    """Tokens of each split as arrays on disk, and the UTF-8 bytes of their text."""

    tokens: Mapping[str, np.ndarray]
    bytes: Mapping[str, int]


def fingerprint(source: Source, tokenizer: Tokenizer) -> str:
    """A hex digest over text, tokenizer and settings."""
    facts = {"format": FORMAT, "tokenizer": tokenizer.fingerprint, "text": source.identity}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def store(source: Source, tokenizer: Tokenizer, folder: Path, progress: bool) -> Stored:
    """The tokens of a source, from `folder` if they are there, else tokenised into it."""
    if stored := _open(folder):
        return stored
    splits = source.splits()
    try:
        with _in_one_step(folder) as building:
            _tokenise(source.name, splits, tokenizer, building, progress)
    except OSError as error:
        raise DataError(
            f"tokens cannot be kept in {folder.parent}: {error.strerror or error}: make room there "
            "or set MLX_PAM_CACHE to another folder"
        ) from error
    stored = _open(folder)
    if stored is None:
        raise DataError(f"{folder} was changed while it was written: run again")
    return stored


def _open(folder: Path) -> Stored | None:
    """What `_tokenise` wrote, if all of it is there."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
        dtype = np.dtype(record["dtype"])
        tokens = {}
        for split, count in record["tokens"].items():
            file = folder / f"{split}.bin"
            if file.stat().st_size != count * dtype.itemsize:
                return None
            tokens[split] = np.memmap(file, dtype, "r") if count else np.empty(0, dtype)
        return Stored(tokens, record["bytes"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def _in_one_step(folder: Path) -> Iterator[Path]:
    """A new folder to write in that takes the place of `folder` when all went well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        yield building
        if _open(folder) is None:  # else another process was faster, as it may be even now
            shutil.rmtree(folder, ignore_errors=True)
            try:
                building.rename(folder)
            except OSError:
                if _open(folder) is None:
                    raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _tokenise(
    name: str, splits: Mapping[str, Split], tokenizer: Tokenizer, folder: Path, progress: bool
) -> None:
    dtype = np.dtype("uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32")
    record: dict[str, object] = {"dtype": dtype.name, "tokens": {}, "bytes": {}}
    with _progress_bar(progress) as bar:
        for split, part in splits.items():
            task = bar.add_task(f"Tokenising {name}: {split}", total=part.size)
            count = size = 0
            with (folder / f"{split}.bin").open("wb") as file:
                for batch in _batches(part.documents):
                    ids = np.fromiter(_encode(batch, tokenizer), dtype)
                    ids.tofile(file)
                    count += len(ids)
                    read = sum(len(piece.encode()) for piece in batch if piece)
                    size += read
                    bar.advance(task, read)
                _sync(file)
            bar.update(task, total=size, completed=size)
            record["tokens"][split], record["bytes"][split] = count, size
    with (folder / RECORD).open("w", encoding="utf-8") as file:
        json.dump(record, file)
        _sync(file)


def _batches(documents: Iterable[Document]) -> Iterator[list[str | None]]:
    """What `_joined` gives, in lists of about `BATCH` characters."""
    batch: list[str | None] = []
    length = 0
    for piece in _joined(documents):
        batch.append(piece)
        length += len(piece or "")
        if length >= BATCH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _joined(documents: Iterable[Document]) -> Iterator[str | None]:
    """Pieces of text, with None between documents; empty documents leave no trace."""
    begun = False
    for document in documents:
        for number, piece in enumerate(pieces(document)):
            if begun and number == 0:
                yield None
            begun = True
            yield piece


def _encode(batch: list[str | None], tokenizer: Tokenizer) -> Iterator[int]:
    encoded = iter(tokenizer.encode_pieces([piece for piece in batch if piece is not None]))
    joint = [tokenizer.end_of_text]
    return itertools.chain.from_iterable(
        joint if piece is None else next(encoded) for piece in batch
    )


def _progress_bar(shown: bool) -> Progress:
    """Bytes of text done and left, on a terminal only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )


def _sync(file: IO) -> None:
    file.flush()
    os.fsync(file.fileno())
