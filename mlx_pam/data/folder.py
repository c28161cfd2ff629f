"""The text files of a folder, linked folders followed once, and a count of what is left out."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mlx_pam.data.files import plain_name, readable
from mlx_pam.errors import DataError

KINDS = (".txt", ".jsonl", ".ndjson", ".parquet")
"""Files that are taken from a folder, whatever the case of the suffix, compressed ones too."""

MOST_SUFFIXES = 5


@dataclass(frozen=True)
class Listing:
    """The files of a folder and of the folders in it."""

    files: list[Path]
    """In an order that depends on nothing but their names."""
    left_out: list[str]
    """The other entries, counted: one phrase for each reason."""


def list_files(folder: Path) -> Listing:
    """The text files under a folder; hidden files and folders are left out.

    A folder that a link leads to is read like any other, but no folder twice: not one that has a
    path without links as well, and no circle. Raises `DataError` if a folder cannot be read, or if
    there is no text file.
    """
    found: list[Path] = []
    others: Counter[str] = Counter()
    hidden = dangling = twice = 0
    seen: set[tuple[int, int]] = set()
    waiting, linked = [folder], []
    while waiting or linked:
        # Paths without links come first, so that they name the files.
        here = waiting.pop() if waiting else linked.pop(0)
        with readable(here):
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:
                twice += 1
                continue
            seen.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        for entry in entries:
            path = here / entry.name
            if entry.name.startswith("."):
                hidden += 1
            elif not path.exists():
                dangling += 1
            elif entry.is_dir():
                (linked if entry.is_symlink() else waiting).append(path)
            elif entry.is_file() and plain_name(path).suffix.lower() in KINDS:
                found.append(path)
            else:
                others[path.suffix.lower() or "no suffix"] += 1
    left_out = [f"{hidden:,} hidden"] if hidden else []
    if others:
        shown = [f"{suffix} {count:,}" for suffix, count in others.most_common(MOST_SUFFIXES)]
        more = ["..."] if len(others) > MOST_SUFFIXES else []
        left_out.append(f"{others.total():,} of other kinds ({', '.join(shown + more)})")
    if dangling:
        left_out.append(f"{dangling:,} links to nothing")
    if twice:
        left_out.append(f"{twice:,} links to folders that are read already")
    if not found:
        but = f" ({', '.join(left_out)})" if left_out else ""
        raise DataError(f"{folder} must hold {kinds()} files, got none{but}")
    found.sort(key=lambda path: path.relative_to(folder).parts)
    return Listing(found, left_out)


def kinds() -> str:
    """The kinds of files, in words."""
    return ", ".join(KINDS[:-1]) + f" or {KINDS[-1]}"
