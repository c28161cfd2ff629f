"""How the documents of a corpus are dealt to train, validation and test, always in the same way.

- Files whose names end in a split's (`train.txt`, `wiki.valid.txt`, `test-01.txt`) are that split.
- Of several documents without a validation split, every 20th is held out; of fewer than 20, the
  last; of more than 10,000, 500 evenly spaced ones.
- Of a single file, the tail is held out: a tenth of its bytes, at most 1 MiB, cut between lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from mlx_pam.data.text import TextRange, read_bytes, readable

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

_SPLIT_OF = {name: split for split, names in NAMES.items() for name in names}
_NAMED = re.compile(rf"(?:^|[^a-z])({'|'.join(_SPLIT_OF)})(?:[^a-z]|of)*$", re.IGNORECASE)

T = TypeVar("T")


def named_split(path: Path) -> str | None:
    """The split that is the last word of a file's name, before numbers as in `-00000-of-00002`."""
    word = _NAMED.search(path.stem)
    return _SPLIT_OF[word[1].lower()] if word else None


def sibling(path: Path, split: str) -> Path | None:
    """The file beside `path` that is named as it is, but for another split."""
    if word := _NAMED.search(path.stem):
        before, after = path.stem[: word.start(1)], path.stem[word.end(1) :]
        for name in NAMES[split]:
            other = path.with_stem(before + name + after)
            if other.is_file():
                return other
    return None


def held_out(number: int, of: int) -> bool:
    """Whether a document, counted from 0, of so many is for validation."""
    stride = max(min(STRIDE, of), -(-of // MOST_HELD_OUT))
    return number % stride == stride - 1


def deal(documents: Sequence[T]) -> dict[str, list[T]]:
    """Documents, two or more, dealt to train and validation."""
    dealt: dict[str, list[T]] = {"train": [], "validation": []}
    for number, document in enumerate(documents):
        split = "validation" if held_out(number, len(documents)) else "train"
        dealt[split].append(document)
    return dealt


def cut_tail(path: Path) -> dict[str, list[TextRange]]:
    """A file cut at the end of a line near the place where its tail has the right size.

    Where no line ends near, the cut is at a space, and in a text without spaces between characters.
    """
    with readable(path):
        size = path.stat().st_size
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
