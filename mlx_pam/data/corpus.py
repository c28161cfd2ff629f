"""Corpora as tokens: `load_corpus` tokenises a text once and maps the tokens into memory.

Text is UTF-8; a byte order mark is dropped and CRLF becomes LF. Documents are joined by the
end-of-text token; its marker inside a text is ordinary text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from mlx_pam.cache import cache_folder
from mlx_pam.data.batches import StoredWindows
from mlx_pam.data.catalogue import find
from mlx_pam.data.store import store
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import DataError


@dataclass(frozen=True)
class Corpus:
    """Tokens of a text, split for training, validation and perhaps test."""

    remedy: ClassVar[str] = "take more text"
    """What makes a split longer."""

    name: str
    description: str
    """Where the text comes from and how it was split."""
    fingerprint: str
    """Hex digest over text, tokenizer and settings."""
    bytes: Mapping[str, int]
    """UTF-8 bytes of each split's text, for bits per byte."""
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray | None = None
    commit: str | None = None
    """Of a data set of the hub."""
    files: Mapping[str, str] = field(default_factory=dict)
    """A digest of each local file, to say which of them changed."""
    reused: Path | None = None
    """The folder of the tokens, if they were there already."""

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each split."""
        return {split: len(self.split(split)) for split in self.bytes}

    def windows(self, seq_len: int, seed: int, part: int) -> StoredWindows:
        """Its windows to train on, as a part of a mixture."""
        return StoredWindows(self.train, seq_len, seed, part)

    def split(self, name: str) -> np.ndarray:
        """The tokens of a split by name."""
        if name not in self.bytes:
            raise DataError(
                f"split of {self.name} must be one of {', '.join(self.bytes)}, got {name}"
            )
        return getattr(self, name)


def load_corpus(
    name: str, tokenizer: Tokenizer, cache_dir: Path | str | None = None, progress: bool = True
) -> Corpus:
    """The corpus of that name (`catalogue`), tokenised if it was not yet.

    Tokens are kept in `cache_dir`: by default `$MLX_PAM_CACHE`, or `~/.cache/mlx_pam`. Raises
    `DataError` if the text is not there, or not as it must be.
    """
    cache = Path(cache_dir) if cache_dir else cache_folder()
    source = find(name, cache)
    stored = store(source, tokenizer, cache, progress)
    return Corpus(
        name=source.name,
        description=source.description + stored.note,
        fingerprint=stored.fingerprint,
        bytes=stored.bytes,
        commit=source.commit,
        files=source.files,
        reused=stored.reused,
        **stored.tokens,
    )
