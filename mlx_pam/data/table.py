"""Parquet files as documents: each row one, in a column of text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlx_pam.data.documents import FIELD, Passage, Pieces
from mlx_pam.data.files import File, readable
from mlx_pam.data.text import plain
from mlx_pam.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ROWS = 1000
"""Rows that are read at a time."""


@dataclass(frozen=True)
class Rows:
    """A row a document, in the column named, or else `text`, or else the only column of text."""

    file: File
    column: str | None = None

    def count(self) -> int:
        with _opened(self.file) as table:
            return table.metadata.num_rows

    def read(self, place: int = 0, pieces: Pieces | None = None) -> Iterator[Passage]:
        with _opened(self.file) as table:
            column = self._column(table)
            row = 0
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if row + rows > place:
                    batches = table.iter_batches(ROWS, row_groups=[group], columns=[column])
                    for batch in batches:
                        skipped = min(max(place - row, 0), len(batch))
                        texts = batch.column(0)[skipped:].to_pylist()
                        for number, text in enumerate(texts, row + skipped):
                            yield Passage(plain(text or ""), True, number)
                        row += len(batch)
                else:
                    row += rows

    def _column(self, table: ParquetFile) -> str:
        texts = [field.name for field in table.schema_arrow if str(field.type) in TEXT_TYPES]
        if self.column is None:
            return text_column(str(self.file), texts)
        if self.column not in texts:
            raise DataError(
                f"{self.file} must have a column of text {self.column!r}, got "
                f"{', '.join(map(repr, texts)) or 'none'}"
            )
        return self.column


TEXT_TYPES = ("string", "large_string", "string_view")


def text_column(name: str, texts: list[str]) -> str:
    """Which of the columns of text holds the documents."""
    if FIELD in texts:
        return FIELD
    if len(texts) != 1:
        raise DataError(
            f"{name} must have a column of text called {FIELD}, or only one, got "
            f"{', '.join(texts) or 'none'}"
        )
    return texts[0]


@contextlib.contextmanager
def _opened(file: File) -> Iterator[ParquetFile]:
    import pyarrow
    import pyarrow.parquet

    try:
        with readable(file), file.open("rb") as opened:
            yield pyarrow.parquet.ParquetFile(opened)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{file} cannot be read as Parquet: {error}") from error
