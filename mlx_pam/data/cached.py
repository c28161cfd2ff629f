"""The corpora whose tokens are kept on the disk: what they are, how old, and away with them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlx_pam.data.building import PREFIX, sweep
from mlx_pam.data.store import FOLDER, RECORD
from mlx_pam.errors import DataError

LEAST = 4
"""Characters of a fingerprint that are enough to name a corpus."""


@dataclass(frozen=True)
class Cached:
    """A folder of tokens."""

    path: Path
    name: str
    """The corpus; empty where the folder is damaged, or another version wrote it."""
    text: str
    """What was tokenised."""
    tokenizer: str
    """Its name; empty where the folder does not tell."""
    fingerprint: str
    tokens: Mapping[str, int]
    size: int
    """Bytes on the disk."""
    unused: float
    """Seconds since a run or an evaluation took it last."""


def cached(cache: Path) -> list[Cached]:
    """The corpora in a cache folder, the one used last first; remains of killed processes go."""
    folder = cache / FOLDER
    if not folder.is_dir():
        return []
    sweep(folder)
    found = [
        _cached(path)
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(PREFIX)  # those are being written
    ]
    return sorted(found, key=lambda each: each.unused)


def remove(cache: Path, which: str) -> list[Cached]:
    """Remove the corpora of a name, or the one of a fingerprint, or `all`; returns those.

    A run that uses one goes on; what begins later tokenises it again.
    """
    there = cached(cache)
    chosen = [
        each
        for each in there
        if (which and which in ("all", each.name))
        or (len(which) >= LEAST and each.fingerprint.startswith(which))
    ]
    if not chosen:
        names = ", ".join(sorted({each.name or each.fingerprint[:8] for each in there})) or "none"
        raise DataError(
            f"remove must be all, or the name or fingerprint of a corpus that is kept in "
            f"{cache / FOLDER}, which are {names}, got {which!r}"
        )
    for each in chosen:
        shutil.rmtree(each.path)
    return chosen


def _cached(path: Path) -> Cached:
    files = [file.stat() for file in path.iterdir()]
    unused = time.time() - max([path.stat().st_mtime, *(file.st_mtime for file in files)])
    size = sum(file.st_size for file in files)
    try:
        record = json.loads((path / RECORD).read_text("utf-8"))
        name, text, fingerprint = (str(record[key]) for key in ("name", "text", "fingerprint"))
        tokenizer = str(record.get("tokenizer", ""))
        tokens = {str(split): int(count) for split, count in record["tokens"].items()}
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
    ):  # fmt: skip
        name, text, tokenizer, fingerprint, tokens = "", "", "", path.name, {}
    return Cached(path, name, text, tokenizer, fingerprint, tokens, size, max(unused, 0.0))
