"""UTF-8 files as a stream of text: BOM dropped, CRLF made LF, a bad byte told by its offset."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlx_pam.data.files import File, read_bytes, size_of
from mlx_pam.errors import DataError

BOM = codecs.BOM_UTF8


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
        end = size_of(path) if end is None else end
        if start == 0:
            start = len(byte_order_mark(path))
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

        def seen() -> Iterator[bytes]:
            for raw in read_bytes(self.path, self.start, self.end):
                digest.update(raw)
                yield raw

        held = ""
        for text in decoded(self.path, seen(), self.start):
            text = held + text
            held = "\r" if text.endswith("\r") else ""  # half of a CRLF, perhaps
            yield plain(text.removesuffix("\r"))
        yield held
        if digest.hexdigest() != self.digest:
            raise DataError(f"{self.path} changed while it was being read: run again")


def byte_order_mark(file: File) -> bytes:
    """The mark that a file begins with, or nothing."""
    return BOM if b"".join(read_bytes(file, 0, len(BOM))) == BOM else b""


def plain(text: str) -> str:
    """Text with LF for CRLF."""
    return text.replace("\r\n", "\n")


def whole_characters(text: str) -> str:
    """The text with U+FFFD for what JSON can write but UTF-8 cannot: half of a surrogate pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def decoded(file: File, blocks: Iterator[bytes], offset: int) -> Iterator[str]:
    """Text of UTF-8 blocks that begin at `offset` of a file, cut anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for raw in blocks:
        yield _decode(decoder, raw, file, offset)
        offset += len(raw)
    yield _decode(decoder, b"", file, offset)


def _decode(decoder: codecs.IncrementalDecoder, raw: bytes, file: File, offset: int) -> str:
    begun = len(decoder.getstate()[0])  # bytes of a character that the last block began
    try:
        return decoder.decode(raw, final=not raw)
    except UnicodeDecodeError as error:
        if what := _known_kind(file):
            raise DataError(f"{file} must be UTF-8, got {what}") from error
        raise DataError(
            f"{file} must be UTF-8, got byte 0x{error.object[error.start]:02x} at offset "
            f"{offset - begun + error.start} ({error.reason}): convert or mend the file"
        ) from error


_KINDS = {
    b"\x1f\x8b": "gzip: give it a name that ends in .gz",
    b"(\xb5/\xfd": "Zstandard: give it a name that ends in .zst",
    b"BZh": "bzip2: decompress it first",
    b"\xfd7zXZ\x00": "xz: decompress it first",
    b"PK\x03\x04": "a ZIP archive: unpack it first",
    b"PAR1": "Parquet: give it a name that ends in .parquet",
    b"%PDF-": "PDF: extract its text first",
    codecs.BOM_UTF32_LE: "UTF-32: convert it first, as with iconv -f UTF-32 -t UTF-8",
    codecs.BOM_UTF32_BE: "UTF-32: convert it first, as with iconv -f UTF-32 -t UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16: convert it first, as with iconv -f UTF-16 -t UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16: convert it first, as with iconv -f UTF-16 -t UTF-8",
}
"""First bytes -> what they begin, and what to do; the longer of two that fit comes first."""


def _known_kind(file: File) -> str | None:
    """The kind of a file that is not text, by its first bytes, and the remedy."""
    first = b"".join(read_bytes(file, 0, 8))
    return next((what for magic, what in _KINDS.items() if first.startswith(magic)), None)
