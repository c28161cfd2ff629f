"""Parquet files as documents, and the column of a table that holds them: each row is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlx_pam.data.documents import FIELD, Passage, Pieces
from mlx_pam.data.files import File, is_compressed, readable
from mlx_pam.data.text import plain
from mlx_pam.errors import DataError

if TYPE_CHECKING:
    from pyarrow import Array, DataType, Schema
    from pyarrow.parquet import ParquetFile

ROWS = 1000
"""Rows that are read at a time."""


@dataclass(frozen=True)
class Rows:
    """A row a document, in a column of text."""

    file: File
    column: str

    def count(self) -> int:
        with _opened(self.file) as table:
            return table.metadata.num_rows

    def check(self) -> None:
        """Raise `DataError` unless the file has the column, and it holds text."""
        with _opened(self.file) as table:
            text_column(str(self.file), table.schema_arrow, self.column)

    def read(self, place: int = 0, pieces: Pieces | None = None) -> Iterator[Passage]:
        with _opened(self.file) as table:
            text_column(str(self.file), table.schema_arrow, self.column)
            row = 0
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if row + rows > place:
                    batches = table.iter_batches(ROWS, row_groups=[group], columns=[self.column])
                    for batch in batches:
                        skipped = min(max(place - row, 0), len(batch))
                        texts = self._texts(batch.column(0)[skipped:], row + skipped)
                        for number, text in enumerate(texts, row + skipped):
                            yield Passage(plain(text or ""), True, number)
                        row += len(batch)
                else:
                    row += rows

    def _texts(self, values: Array, row: int) -> list[str | None]:
        """The values of the column from a row on."""
        try:
            return values.to_pylist()
        except UnicodeDecodeError:
            for number, value in enumerate(values, row):
                try:
                    value.as_py()
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{self.file} must hold UTF-8 in the column {self.column!r}, got byte "
                        f"0x{error.object[error.start]:02x} in row {number}, at offset "
                        f"{error.start} of its text ({error.reason}): mend or remove the row"
                    ) from error
            raise


def column_of(file: File) -> str:
    """The column of a file that holds the documents, see `text_column`."""
    with _opened(file) as table:
        return text_column(str(file), table.schema_arrow)


TEXT_TYPES = ("string", "large_string", "string_view")


def text_column(name: str, schema: Schema, column: str | None = None) -> str:
    """Which column holds the documents: the one named, or else `text`, or else the only candidate.

    A column that is not called `text` is taken only where no other one could hold the documents:
    where all others are of numbers, truth values or times. Raises `DataError` otherwise, and if
    the column does not hold text: strings, large or dictionary-encoded ones too.
    """
    texts = [field.name for field in schema if _is_text(field.type)]
    if column is None and FIELD in schema.names:
        column = FIELD
    if column is not None:
        if column in texts:
            return column
        got = f"one of {schema.field(column).type}" if column in schema.names else "none"
        raise DataError(
            f"{name} must have a column of text {column!r}, got {got}; its columns of text: "
            f"{', '.join(map(repr, texts)) or 'none'}: name one, as in DATA?column=NAME"
        )
    others = [field for field in schema if not (_is_text(field.type) or _is_plain(field.type))]
    if len(texts) != 1 or others:
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise DataError(
            f"{name} must have a column of text called {FIELD}, or one beside numbers only, got "
            f"{columns or 'none'}: name one, as in DATA?column=NAME"
        )
    return texts[0]


def _is_text(kind: DataType) -> bool:
    import pyarrow

    return str(kind.value_type if pyarrow.types.is_dictionary(kind) else kind) in TEXT_TYPES


def _is_plain(kind: DataType) -> bool:
    """Whether it is of numbers, truth values or times."""
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return any(test(kind) for test in (*tests, types.is_temporal))


@contextlib.contextmanager
def _opened(file: File) -> Iterator[ParquetFile]:
    """A Parquet file for reading; whatever is wrong with it is a `DataError` that names it."""
    import pyarrow
    import pyarrow.parquet

    if is_compressed(file):
        raise DataError(
            f"{file} must be a plain Parquet file, which is compressed inside: decompress it first"
        )
    try:
        with readable(file), file.open("rb") as opened:
            yield pyarrow.parquet.ParquetFile(opened)
    except pyarrow.ArrowException as error:
        raise DataError(f"{file} cannot be read as Parquet: {error}") from error
