"""Files that hold documents: one text, texts between separators, JSON lines, rows of a table.

A reader gives passages from any place on, so that a stream can return to where it stood. A place
counts bytes, of what a compressed file holds, or the rows of a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mlx_pam.data.files import File, plain_name, read_bytes
from mlx_pam.data.gpt2 import pieces
from mlx_pam.data.text import byte_order_mark, decoded, plain, whole_characters
from mlx_pam.errors import DataError

BY_BLANK_LINE, BY_END_OF_TEXT = "by-blank-line", "by-endoftext"
SEPARATORS = {BY_BLANK_LINE: b"", BY_END_OF_TEXT: b"<|endoftext|>"}
"""What stands alone on a line between two documents."""

FIELD = "text"
JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".parquet",)

_JSON_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}


Pieces = Callable[[Iterable[str]], Iterator[str]]
"""How a tokenizer wants a long text cut: `Tokenizer.pieces`."""


class Passage(NamedTuple):
    """A document, or one of the pieces of a long one that have, encoded one by one, its tokens."""

    text: str
    begins: bool
    """Whether a document begins here."""
    place: int
    """Where in the file it begins."""


class Reader(Protocol):
    """A file of documents."""

    file: File

    def count(self) -> int:
        """Documents in the file."""

    def read(self, place: int = 0, pieces: Pieces = pieces) -> Iterator[Passage]:
        """The passages from a place on. Raises `DataError` where the file is not as it must be."""


@dataclass(frozen=True)
class WholeText:
    """A file that is one document, in pieces."""

    file: File

    def count(self) -> int:
        return 1

    def read(self, place: int = 0, pieces: Pieces = pieces) -> Iterator[Passage]:
        begin = len(byte_order_mark(self.file))
        place = max(place, begin)
        for piece in pieces(decoded(self.file, read_bytes(self.file, place), place)):
            yield Passage(plain(piece), place == begin, place)
            place += len(piece.encode())


@dataclass(frozen=True)
class Separated:
    """Documents with a line between them, blank or `<|endoftext|>`, and perhaps several.

    Newlines at the ends of a document belong to the separator.
    """

    file: File
    by: str

    def count(self) -> int:
        return sum(1 for _ in self.read())

    def read(self, place: int = 0, pieces: Pieces = pieces) -> Iterator[Passage]:
        lines: list[bytes] = []
        for at, line in _lines(self.file, place):
            if line.strip() == SEPARATORS[self.by]:
                yield from self._document(lines, place)
                lines, place = [], at + len(line) + 1
            else:
                lines.append(line)
        yield from self._document(lines, place)

    def _document(self, lines: list[bytes], place: int) -> Iterator[Passage]:
        text = _text(self.file, b"\n".join(lines), place)
        if text := text.strip("\r\n"):
            yield Passage(text, True, place)


@dataclass(frozen=True)
class JsonLines:
    """A JSON object a line, each with a document in one of its fields; null is an empty one."""

    file: File
    field: str

    def count(self) -> int:
        return sum(1 for _, line in _lines(self.file) if line.strip())

    def read(self, place: int = 0, pieces: Pieces = pieces) -> Iterator[Passage]:
        for at, line in _lines(self.file, place):
            if line.strip():
                yield Passage(self._document(line, at), True, at)

    def _document(self, line: bytes, place: int) -> str:
        try:
            found = json.loads(_text(self.file, line, place))
        except (ValueError, RecursionError) as error:
            raise self._unfit(f"no JSON ({error})", place) from error
        if not isinstance(found, dict):
            raise self._unfit(_kind(found), place)
        if self.field not in found:
            fields = ", ".join(map(repr, list(found)[:9])) or "none"
            raise self._unfit(f"an object with the fields {fields}", place)
        value = found[self.field]
        if value is not None and not isinstance(value, str):
            raise self._unfit(f"{_kind(value)} in that field", place)
        return whole_characters(plain(value or ""))

    def _unfit(self, got: str, place: int) -> DataError:
        return DataError(
            f"{self.file} must hold a JSON object a line, with a text in the field {self.field!r}, "
            f"got {got} at offset {place}: mend it, or name the field, as in "
            f"{self.file.name}:FIELD"
        )


def reader(file: File, how: str | None = None, column: str | None = None) -> Reader:
    """How to read a file, by its name.

    `how` names a separator of texts, or a field or column; `column` the latter, and nothing of a
    text. Raises `DataError` where neither names the column of a table, and it is not known.
    """
    column = column or (None if how in SEPARATORS else how)
    if _suffix(file) in JSON_LINES:
        return JsonLines(file, column or FIELD)
    if _suffix(file) in TABLES:
        from mlx_pam.data.table import Rows, column_of

        return Rows(file, column or column_of(file))
    if how is None:
        return WholeText(file)
    if how not in SEPARATORS:
        raise DataError(
            f"the documents of {file} must be told {' or '.join(SEPARATORS)}, got {how!r}"
        )
    return Separated(file, how)


class SplitReaders(NamedTuple):
    """The readers of each split, and the column that holds their documents."""

    readers: dict[str, list[Reader]]
    column: str | None
    """None where no file has columns."""

    @property
    def note(self) -> str:
        """The column in words, or nothing."""
        return f", text in column {self.column!r}" if self.column else ""


def split_readers(
    files: Mapping[str, Sequence[File]],
    how: str | None = None,
    column: str | None = None,
    look: bool = True,
) -> SplitReaders:
    """How to read the files of a corpus: all from one column, that of the first table.

    With `look`, tables are looked into whether they have it. Raises `DataError` if not, and if
    they have another one than JSON lines.
    """
    given = column or (None if how in SEPARATORS else how)
    every = [file for of in files.values() for file in of]
    tables = [file for file in every if _suffix(file) in TABLES]
    lines = [file for file in every if _suffix(file) in JSON_LINES]
    if column and not (tables or lines):
        raise DataError(f"column must be left out for {every[0]}, which has none, got {column!r}")
    column = given
    if tables and not column:
        column = reader(tables[0]).column
        if lines and column != FIELD:
            raise DataError(
                f"the column must be that of all files, got {column!r} in {tables[0]} and "
                f"{FIELD!r} in {lines[0]}: name one, as in DATA?column=NAME"
            )
    readers = {split: [reader(file, how, column) for file in of] for split, of in files.items()}
    for each in (each for of in readers.values() for each in of):
        if look and _suffix(each.file) in TABLES:
            each.check()
    return SplitReaders(readers, (column or FIELD) if tables or lines else None)


def _suffix(file: File) -> str:
    return plain_name(file).suffix.lower()


def _lines(file: File, place: int = 0) -> Iterator[tuple[int, bytes]]:
    """Lines without their LF, and where they begin."""
    parts: list[bytes] = []
    for raw in read_bytes(file, place):
        first, *rest = raw.split(b"\n")
        parts.append(first)
        if rest:
            line = b"".join(parts)
            for after in rest:
                yield place, line
                place, line = place + len(line) + 1, after
            parts = [line]
    if any(parts):
        yield place, b"".join(parts)


def _text(file: File, raw: bytes, place: int) -> str:
    """The text of some bytes at a place of a file, without its byte order mark."""
    begin = len(byte_order_mark(file)) if place == 0 else 0
    return plain("".join(decoded(file, iter([raw[begin:]]), place + begin)))


def _kind(value: object) -> str:
    return _JSON_KINDS.get(type(value), "null" if value is None else "a number")
