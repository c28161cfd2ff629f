"""Corpora by name: `load_corpus` finds the text, tokenises it once and maps the tokens into memory.

`sample`, `wikitext-103`, `wikitext-2`, `hf:OWNER/NAME[:CONFIG]`, or the path of a file or folder,
perhaps with `:HOW` behind it, which says where its documents are. Text is UTF-8; a byte order mark
is dropped and CRLF becomes LF. Documents are joined by the end-of-text token; its marker inside a
text is ordinary text.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_pam.cache import cache_folder
from mlx_pam.data import wikitext
from mlx_pam.data.batches import StoredWindows
from mlx_pam.data.files import readable
from mlx_pam.data.hub import HubText
from mlx_pam.data.source import Source, Split, local, sample
from mlx_pam.data.store import store
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import DataError

NAMES = ("sample", *wikitext.CONFIGS)
_HUB_NAME = re.compile(r"hf:([^/:\s]+/[^/:\s]+)(?::(\S+))?")


@dataclass(frozen=True)
class Corpus:
    """Tokens of a text, split for training, validation and perhaps test."""

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
    """The corpus of that name, tokenised if it was not yet. Raises `DataError` if it is not there.

    Tokens are kept in `cache_dir`: by default `$MLX_PAM_CACHE`, or `~/.cache/mlx_pam`.
    """
    cache = Path(cache_dir) if cache_dir else cache_folder()
    source = find(name, cache)
    stored = store(source, tokenizer, cache, progress)
    return Corpus(
        name=source.name,
        description=source.description + stored.note,
        fingerprint=stored.fingerprint,
        bytes=stored.bytes,
        **stored.tokens,
    )


def find(name: str, cache: Path) -> Source:
    """Where the text of a corpus is."""
    if name == "sample":
        return sample()
    if config := wikitext.CONFIGS.get(name):
        return _hub(name, wikitext.REPOSITORY, config, wikitext.REVISION, cache)
    if match := _HUB_NAME.fullmatch(name):
        return _hub(name, match[1], match[2], None, cache)
    if found := local_name(name):
        return local(*found)
    near = difflib.get_close_matches(name, NAMES, 1)
    raise DataError(
        f"data must be {', '.join(NAMES)}, hf:OWNER/NAME[:CONFIG], or the path of a file or a "
        f"folder, got {name!r}, which is not there" + (f": do you mean {near[0]}?" if near else "")
    )


def local_name(name: str) -> tuple[Path, str | None] | None:
    """The path that a name is, if it is there, and what is said behind a colon of its documents."""
    for text, how in ((name, ""), name.rpartition(":")[::2]):
        path = Path(text).expanduser()
        with readable(path):
            if text and path.exists():
                return path, how or None
    return None


def _hub(
    name: str, repository: str, config: str | None, revision: str | None, cache: Path
) -> Source:
    """The texts that the user placed in the cache by hand, or else those of the hub."""
    by_hand = cache / "text" / re.sub(r"[/:]", "--", name.removeprefix("hf:"))
    if by_hand.is_dir():
        placed = dataclasses.replace(local(by_hand), name=name)
        return _by_article(placed) if repository == wikitext.REPOSITORY else placed
    otherwise = (
        f"connect once, or place its text as train.txt and valid.txt in {by_hand}, or take "
        "the data sample or a text file, which need no network"
    )
    return HubText(name, repository, config, revision, otherwise).source()


def _by_article(source: Source) -> Source:
    """The same text, each article a document."""

    def splits() -> dict[str, Split]:
        return {
            split: Split(
                wikitext.articles(wikitext.lines(itertools.chain.from_iterable(part.documents))),
                part.size,
            )
            for split, part in source.splits().items()
        }

    return dataclasses.replace(
        source, identity={"articles": True, **source.identity}, splits=splits
    )
