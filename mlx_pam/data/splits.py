"""How the documents of a corpus are dealt to train, validation and test, always in the same way.

- In a folder, file names decide where they agree: where a file for training and one that is held
  out have the same name but for the split's (`train.txt`, `valid.txt`; `wiki.train.jsonl`,
  `wiki.test.jsonl`). Then files without a split's name are left out, and counted.
- Of several documents without a validation split, every 20th is held out; of fewer than 20, the
  last; of more than 10,000, 500 evenly spaced ones.
- Of a single text, the tail is held out: a tenth of its bytes, at most 1 MiB, cut between lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from mlx_pam.data.files import plain_name, read_bytes, size_of
from mlx_pam.data.folder import kinds, list_files
from mlx_pam.data.text import TextRange
from mlx_pam.errors import DataError

NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""What a split is called in file names and data sets, the likeliest first."""

STRIDE = 20
MOST_HELD_OUT = 500
TAIL_SHARE = 0.1
LARGEST_TAIL = 1 << 20

MOST_SHOWN = 3
"""File names that a note lists."""

_SPLIT_OF = {name: split for split, names in NAMES.items() for name in names}
_SHARD = r"(?:[._-]?\d+)*(?:-of-\d+)?(?:-[0-9a-f]{16})?"  # as in train-00000-of-00002
_NAMED = re.compile(rf"(?:(.*)[._-])?({'|'.join(_SPLIT_OF)}){_SHARD}$", re.IGNORECASE)

T = TypeVar("T")


class SplitFiles(NamedTuple):
    """The files of each split, and what is to be told of the others."""

    files: dict[str, list[Path]]
    note: str
    """Empty, or behind a semicolon how many files are left out, and why."""


def split_files(path: Path) -> SplitFiles:
    """The files of each split in a folder, or of a file and those that are named as it is."""
    if path.is_dir():
        return _folder_splits(path)
    if not path.is_file():
        raise DataError(f"{path} is neither a file nor a folder")
    files = {"train": [path]}
    if named_split(path) == "train" and (validation := sibling(path, "validation")):
        files["validation"] = [validation]
        if test := sibling(path, "test"):
            files["test"] = [test]
    return SplitFiles(files, "")


def _folder_splits(folder: Path) -> SplitFiles:
    listing = list_files(folder)
    named: dict[str | None, list[Path]] = {}
    for file in listing.files:
        named.setdefault(named_split(file), []).append(file)
    unnamed = named.pop(None, [])
    left_out, documents = listing.left_out, ""
    if _names_agree(named):
        files = {split: named[split] for split in NAMES if split in named}
        if unnamed:
            left_out = [f"{_counted(unnamed)} without the name of a split", *left_out]
    elif not unnamed and "train" not in named and not any(map(_rest, listing.files)):
        raise DataError(f"{folder} must hold {kinds()} files to train on, got none")
    else:
        files = {"train": listing.files}
        if odd := [
            file for split, of in named.items() if split != "train" or unnamed for file in of
        ]:
            documents = f"; read as documents like the others, not as splits: {_counted(odd)}"
    return SplitFiles(files, documents + (f"; left out: {', '.join(left_out)}" if left_out else ""))


def _names_agree(named: dict[str | None, list[Path]]) -> bool:
    """Whether a file to train on and one that is held out differ in the name of the split alone.

    A held-out file that is called by its split's name and nothing else goes with any.
    """
    rests = {_rest(file) for file in named.get("train", ())}
    held_out = {_rest(file) for split, of in named.items() if split != "train" for file in of}
    return bool(rests) and bool(held_out & {*rests, ""})


def _counted(files: Sequence[Path]) -> str:
    shown = ", ".join(file.name for file in files[:MOST_SHOWN])
    return f"{len(files):,} ({shown}{', ...' if len(files) > MOST_SHOWN else ''})"


def named_split(path: Path) -> str | None:
    """The split that is a file's name, or its last word behind a dot, a hyphen or an underscore.

    Numbers as in `-00000-of-00002` may follow.
    """
    word = _NAMED.fullmatch(plain_name(path).stem)
    return _SPLIT_OF[word[2].lower()] if word else None


def _rest(path: Path) -> str:
    """A file's name without that of its split and all that follows; without a split, all of it."""
    stem = plain_name(path).stem
    word = _NAMED.fullmatch(stem)
    return (word[1] or "").lower() if word else stem


def sibling(path: Path, split: str) -> Path | None:
    """The file beside `path` that is named as it is, but for another split."""
    if word := _NAMED.fullmatch(plain_name(path).stem):
        before, after = path.name[: word.start(2)], path.name[word.end(2) :]
        for name in NAMES[split]:
            other = path.with_name(before + name + after)
            if other.is_file():
                return other
    return None


def held_out(number: int, of: int) -> bool:
    """Whether a document, counted from 0, of so many is for validation."""
    stride = max(min(STRIDE, of), -(-of // MOST_HELD_OUT))
    return number % stride == stride - 1


def deal(documents: Sequence[T]) -> dict[str, list[T]]:
    """Documents, two or more, dealt to train and validation."""
    count = len(documents)
    return {
        "train": [*Part(documents, count, False)],
        "validation": [*Part(documents, count, True)],
    }


@dataclass(frozen=True)
class Part(Generic[T]):
    """Those of `count` documents that are held out, or the others."""

    documents: Iterable[T]
    count: int
    held_out: bool

    def __iter__(self) -> Iterator[T]:
        for number, document in enumerate(self.documents):
            if held_out(number, self.count) == self.held_out:
                yield document


def cut_tail(path: Path) -> dict[str, list[TextRange]]:
    """A file cut at the end of a line near the place where its tail has the right size.

    Where no line ends near, the cut is at a space, and in a text without spaces between characters.
    """
    size = size_of(path)
    tail = min(int(size * TAIL_SHARE), LARGEST_TAIL)
    begin, end = size - tail - tail // 2, size - tail // 2
    near = b"".join(read_bytes(path, begin, end))
    cut = begin + _nearest_seam(near, size - tail - begin)
    return {"train": [TextRange.of(path, 0, cut)], "validation": [TextRange.of(path, cut)]}


def _nearest_seam(near: bytes, target: int) -> int:
    for seam in (rb"(?<=\n)", rb"(?= )"):
        places = [match.start() for match in re.finditer(seam, near)]
        if places:
            return min(places, key=lambda place: abs(place - target))
    while target < len(near) and near[target] & 0xC0 == 0x80:  # inside a character
        target += 1
    return target
