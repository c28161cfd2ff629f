"""How the documents of a corpus are dealt to train, validation and test, always in the same way.

- Files whose names end in a split's (`train.txt`, `wiki.valid.jsonl`, `test-01.txt.gz`) are that
  split.
- Of several documents without a validation split, every 20th is held out; of fewer than 20, the
  last; of more than 10,000, 500 evenly spaced ones.
- Of a single text, the tail is held out: a tenth of its bytes, at most 1 MiB, cut between lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from mlx_pam.data.files import plain_name, read_bytes, size_of
from mlx_pam.data.text import TextRange
from mlx_pam.errors import DataError

NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""What a split is called in file names and data sets, the likeliest first."""

KINDS = (".txt", ".jsonl", ".parquet")
"""Files that are taken from a folder, compressed ones too."""

STRIDE = 20
MOST_HELD_OUT = 500
TAIL_SHARE = 0.1
LARGEST_TAIL = 1 << 20

_SPLIT_OF = {name: split for split, names in NAMES.items() for name in names}
_NAMED = re.compile(rf"(?:^|[^a-z])({'|'.join(_SPLIT_OF)})(?:[^a-z]|of)*$", re.IGNORECASE)

T = TypeVar("T")


def split_files(path: Path) -> dict[str, list[Path]]:
    """The files of each split in a folder, or of a file and those that are named as it is."""
    files: dict[str | None, list[Path]] = {}
    if path.is_dir():
        for file in folder_files(path):
            files.setdefault(named_split(file), []).append(file)
        train = files.get("train") or files.get(None)
        if not train:
            raise DataError(f"{path} must hold {_kinds()} files to train on, got none")
    elif not path.is_file():
        raise DataError(f"{path} is neither a file nor a folder")
    else:
        train = [path]
        if named_split(path) == "train":
            files = {split: [o] for split in ("validation", "test") if (o := sibling(path, split))}
        if "validation" not in files:
            files = {}
    return {"train": train} | {s: files[s] for s in ("validation", "test") if s in files}


def folder_files(folder: Path) -> list[Path]:
    """Files in an order that depends on nothing but their names; hidden ones are left out."""
    found = (path for path in folder.rglob("*") if plain_name(path).suffix in KINDS)
    names = (path.relative_to(folder) for path in found if path.is_file())
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    if not shown:
        raise DataError(f"{folder} must hold {_kinds()} files, got none")
    return [folder / name for name in sorted(shown, key=lambda name: name.parts)]


def _kinds() -> str:
    return ", ".join(KINDS[:-1]) + f" or {KINDS[-1]}"


def named_split(path: Path) -> str | None:
    """The split that is the last word of a file's name, before numbers as in `-00000-of-00002`."""
    word = _NAMED.search(plain_name(path).stem)
    return _SPLIT_OF[word[1].lower()] if word else None


def sibling(path: Path, split: str) -> Path | None:
    """The file beside `path` that is named as it is, but for another split."""
    if word := _NAMED.search(plain_name(path).stem):
        before, after = path.name[: word.start(1)], path.name[word.end(1) :]
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
