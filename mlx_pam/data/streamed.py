"""Corpora that are read as they are needed: their files, and the documents that are held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mlx_pam.data.documents import Passage, Reader, WholeText, split_readers
from mlx_pam.data.files import BLOCK, readable
from mlx_pam.data.progress import Progress
from mlx_pam.data.source import local_name, relative
from mlx_pam.data.splits import split_files
from mlx_pam.data.stream import EndlessText, StreamedWindows, digest, encode_passage
from mlx_pam.data.text import TextRange
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import DataError

FORMAT = 2
"""Part of every fingerprint: to be raised when the same files shall become other windows."""

SAMPLE = 1 << 12
"""Bytes of a sample of a file."""

SAMPLES = 64
"""Samples, evenly spaced, by which a change of a large file is noticed."""

WHOLE = 1 << 30
"""Bytes of a corpus up to which its files are compared whole."""


@dataclass(frozen=True)
class Streaming:
    """How texts are read as they are needed."""

    buffer: int
    """Windows that are shuffled together, and kept in memory."""
    validation: int
    """Documents that are held out."""


@dataclass(frozen=True)
class Files:
    """The files of a corpus."""

    name: str
    description: str
    readers: Mapping[str, Sequence[Reader]]
    """Of train, and perhaps of validation."""
    identity: Any
    """What is known of the text without reading it all, as JSON can hold it."""
    commit: str | None = None
    """Of a data set of the hub."""
    files: Mapping[str, str] = field(default_factory=dict)
    """A digest of each local file, to say which of them changed."""


@dataclass(frozen=True)
class Streamed:
    """A text that is read as it is needed; beside `mlx_pam.data.corpus.Corpus`."""

    remedy: ClassVar[str] = "hold out more documents (stream_validation)"
    reused: ClassVar[None] = None
    """It stores no tokens."""

    name: str
    description: str
    fingerprint: str
    """Hex digest over what is known of the files, tokenizer and settings."""
    train: Sequence[Reader]
    validation: np.ndarray
    held_out: frozenset[bytes]
    """`digest` of documents of train."""
    tokenizer: Tokenizer
    buffer: int
    commit: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """As of `Files`."""

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of the split that has an end."""
        return {"validation": len(self.validation)}

    def windows(self, seq_len: int, seed: int, part: int) -> StreamedWindows:
        """Its windows to train on, as a part of a mixture."""
        text = EndlessText(self.name, self.train, self.held_out, self.tokenizer, seed, part)
        return StreamedWindows(text, seq_len, self.buffer)


def local_files(path: Path, how: str | None = None, column: str | None = None) -> Files:
    """A file or the files of a folder, `how` and `column` as in `documents.reader`."""
    files, note = split_files(path)
    files = {split: of for split, of in files.items() if split != "test"}
    readers, _ = found = split_readers(files, how, column)
    glances = _glances([file for of in files.values() for file in of])
    identity = {"files": {split: [glances[file] for file in of] for split, of in files.items()}}
    identity |= {"how": how} | ({"column": column} if column else {})
    count = sum(map(len, readers.values()))
    description = f"{path}, files: {count}{found.note}{note}"
    digests = {relative(file, path): digest for file, (_, digest) in glances.items()}
    return Files(local_name(path, how, column), description, readers, identity, files=digests)


def open_stream(files: Files, tokenizer: Tokenizer, streaming: Streaming) -> Streamed:
    """Read the documents that are held out: the first of the validation files, or else of train.

    In the latter case no copy of them is trained on. Raises `DataError` if nothing is left.
    """
    facts = [FORMAT, tokenizer.fingerprint, files.identity, asdict(streaming)]
    given = files.readers.get("validation")
    train = files.readers["train"]
    tokens, documents, held_out, whole = [], 0, set(), set()
    for each, passage in _passages(given or train, tokenizer):
        documents += passage.begins
        if documents > streaming.validation:
            break
        tokens.append(encode_passage(passage, tokenizer))
        if isinstance(each, WholeText):
            whole.add(each)
        else:
            held_out.add(digest(passage.text))
    else:
        if not given:
            raise DataError(
                f"{files.name} must hold more documents than stream_validation, "
                f"{streaming.validation}, which holds out the first, got {documents}: lower it, or "
                f"say what stands between the documents of a text, as in {files.name}:by-blank-line"
            )
    if not given:
        train = _without(whole, train)
    where = "of the validation files" if given else "held out, and copies of them"
    return Streamed(
        name=files.name,
        description=f"{files.description}, read as needed; validation: the first "
        f"{min(documents, streaming.validation)} documents {where}",
        fingerprint=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        train=train,
        validation=np.concatenate(tokens) if tokens else np.empty(0, tokenizer.dtype),
        held_out=frozenset() if given else frozenset(held_out),
        tokenizer=tokenizer,
        buffer=streaming.buffer,
        commit=files.commit,
        files=files.files,
    )


def _passages(readers: Sequence[Reader], tokenizer: Tokenizer) -> Iterator[tuple[Reader, Passage]]:
    for each in readers:
        for passage in each.read(pieces=tokenizer.pieces):
            yield each, passage


def _without(whole: set[WholeText], readers: Sequence[Reader]) -> list[Reader]:
    """The readers without files that are held out whole, and without copies of these."""
    held_out = {_size(each.file): set() for each in whole}
    for each in whole:
        held_out[_size(each.file)].add(TextRange.of(each.file).digest)

    def is_held_out(each: Reader) -> bool:
        digests = held_out.get(_size(each.file)) if isinstance(each, WholeText) else None
        return bool(digests) and TextRange.of(each.file).digest in digests

    return [each for each in readers if not is_held_out(each)]


def _size(file: Path) -> int:
    with readable(file):
        return file.stat().st_size


def _glances(files: Sequence[Path]) -> dict[Path, list[Any]]:
    """Size and digest of each file: of all its bytes, or of samples where all files are large."""
    sizes = {file: _size(file) for file in files}
    whole = sum(sizes.values()) <= WHOLE
    with Progress(f"reading {files[0]}, to notice changes", shown=whole) as progress:
        return {file: [size, _glance(file, size, whole, progress)] for file, size in sizes.items()}


def _glance(file: Path, size: int, whole: bool, progress: Progress) -> str:
    """A digest of a file, or of `SAMPLES` samples of it, evenly spaced from end to end."""
    seen = hashlib.sha256()
    with readable(file), file.open("rb") as opened:
        if whole or size <= SAMPLES * SAMPLE:
            while raw := opened.read(BLOCK):
                seen.update(raw)
                progress.advance(len(raw))
        else:
            for number in range(SAMPLES):
                opened.seek((size - SAMPLE) * number // (SAMPLES - 1))
                seen.update(opened.read(SAMPLE))
    return seen.hexdigest()
