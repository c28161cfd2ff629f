"""UTF-8 files as a stream of text: BOM dropped, CRLF made LF, a bad byte told by its offset."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlx_pam.errors import DataError

BLOCK = 1 << 20
"""Bytes that are read at a time."""


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the system says against reading a file, as a `DataError` that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class TextRange:
    """The text in bytes `start` to `end` of a file, as they were when `of` saw them."""

    path: Path
    start: int
    end: int
    digest: str
    """SHA-256 of the bytes."""

    @classmethod
    def of(cls, path: Path, start: int = 0, end: int | None = None) -> TextRange:
        """A file from `start` to `end`, or to its end; a byte order mark is not of the text."""
        with readable(path):
            end = path.stat().st_size if end is None else end
        mark = codecs.BOM_UTF8
        if start == 0 and b"".join(read_bytes(path, 0, len(mark))) == mark:
            start = len(mark)
        digest = hashlib.sha256()
        for raw in read_bytes(path, start, end):
            digest.update(raw)
        return cls(path, start, end, digest.hexdigest())

    @property
    def size(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[str]:
        """The text in blocks. Raises `DataError` at a bad byte, and if the file has changed."""
        digest = hashlib.sha256()
        decoder = codecs.getincrementaldecoder("utf-8")()
        offset, held = self.start, ""
        for raw in read_bytes(self.path, self.start, self.end):
            digest.update(raw)
            text = held + self._decode(decoder, raw, offset)
            offset += len(raw)
            held = "\r" if text.endswith("\r") else ""  # half of a CRLF, perhaps
            yield text.removesuffix("\r").replace("\r\n", "\n")
        yield held + self._decode(decoder, b"", offset)
        if digest.hexdigest() != self.digest:
            raise DataError(f"{self.path} changed while it was being read: run again")

    def _decode(self, decoder: codecs.IncrementalDecoder, raw: bytes, offset: int) -> str:
        begun = len(decoder.getstate()[0])  # bytes of a character that the last block began
        try:
            return decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path} must be UTF-8, got byte 0x{error.object[error.start]:02x} at offset "
                f"{offset - begun + error.start} ({error.reason}): convert or mend the file"
            ) from error


def read_bytes(path: Path, start: int, end: int) -> Iterator[bytes]:
    """A stretch of a file in blocks; less of it where the file ends early."""
    with readable(path), path.open("rb") as file:
        file.seek(start)
        while raw := file.read(min(BLOCK, end - start)):
            start += len(raw)
            yield raw
