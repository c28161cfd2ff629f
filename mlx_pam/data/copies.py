"""Documents that are held out and, to the byte, in the training text as well."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from mlx_pam.data.text import TextRange

Document = Iterable[str]
"""The text of a document, in blocks cut anywhere."""


class Apart:
    """Passes documents on, those that are held out first, and finds the copies in the others."""

    def __init__(self, leave_out: bool) -> None:
        self.leave_out = leave_out
        """Whether a copy is not trained on, or only counted."""
        self.copies = 0
        self._held_out: set[bytes] = set()

    def held_out(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            if digest := _digest(document):
                self._held_out.add(digest)
            yield document

    def train(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            copy = _digest(document) in self._held_out
            self.copies += copy
            if not (copy and self.leave_out):
                yield document

    def note(self) -> str:
        """The copies in words, or nothing."""
        if not self.copies:
            return ""
        where = "left out" if self.leave_out else "in train"
        return f"; copies of held-out documents {where}: {self.copies:,}"


def _digest(document: Document) -> bytes | None:
    """What a document is known by; nothing, if it is empty."""
    if isinstance(document, TextRange):
        return bytes.fromhex(document.digest) if document.size else None
    text = "".join(document)
    return hashlib.sha256(text.encode()).digest() if text else None
