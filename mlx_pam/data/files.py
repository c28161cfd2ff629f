"""The bytes of files from any offset; what a name says is compressed is read as what it holds."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import PurePath
from typing import BinaryIO, Protocol

from mlx_pam.data.progress import Progress
from mlx_pam.errors import DataError

BLOCK = 1 << 20
"""Bytes that are read at a time."""

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Name suffix, in any case -> codec."""


class File(Protocol):
    """A file that can be read: a `Path` is one, and so is a file of the hub."""

    @property
    def name(self) -> str: ...

    def open(self, mode: str) -> BinaryIO: ...


@contextlib.contextmanager
def readable(file: File) -> Iterator[None]:
    """What the system says against reading a file, as a `DataError` that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def plain_name(file: File) -> PurePath:
    """The name without the suffix of a compression."""
    name = PurePath(file.name)
    return name.with_suffix("") if _codec(file) else name


def read_bytes(file: File, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """A stretch of a file in blocks; less of it where the file ends early.

    A compressed file is read from its beginning, and what lies before `start` is dropped.
    """
    with readable(file), file.open("rb") as opened:
        if codec := _codec(file):
            opened = _decompressed(opened, codec)
            if start:
                _skip(opened, file, start)
        else:
            opened.seek(start)
        while raw := opened.read(BLOCK if end is None else min(BLOCK, end - start)):
            start += len(raw)
            yield raw


def size_of(file: File) -> int:
    """Bytes that `read_bytes` gives."""
    if _codec(file):
        return sum(map(len, read_bytes(file)))
    with readable(file), file.open("rb") as opened:
        return opened.seek(0, io.SEEK_END)


def is_compressed(file: File) -> bool:
    """Whether its name says so."""
    return _codec(file) is not None


def _codec(file: File) -> str | None:
    return COMPRESSED.get(PurePath(file.name).suffix.lower())


def _decompressed(opened: BinaryIO, codec: str) -> BinaryIO:
    import pyarrow  # comes with datasets; heavy

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(opened, "r"), codec)


def _skip(opened: BinaryIO, file: File, count: int) -> None:
    """Read so many bytes and drop them."""
    with Progress(f"finding the place in {file.name}", count) as progress:
        while count and (raw := opened.read(min(BLOCK, count))):
            count -= len(raw)
            progress.advance(len(raw))
