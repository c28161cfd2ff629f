"""WikiText as documents: its rows are lines, and a line ` = Title = ` begins an article."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

REPOSITORY = "Salesforce/wikitext"
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
CONFIGS = {"wikitext-103": "wikitext-103-raw-v1", "wikitext-2": "wikitext-2-raw-v1"}

_TITLE = re.compile(r" = [^=].* = \n")


def articles(rows: Iterable[str]) -> Iterator[list[str]]:
    """Lines gathered into articles; an empty row is an empty line."""
    article: list[str] = []
    for row in rows:
        if _TITLE.fullmatch(row) and any(map(str.strip, article)):
            yield article
            article = []
        article.append(row or "\n")
    yield article


def lines(blocks: Iterable[str]) -> Iterator[str]:
    """Text in blocks cut anywhere, as lines that keep their ends."""
    rest = ""
    for block in blocks:
        *whole, rest = (rest + block).split("\n")
        yield from (line + "\n" for line in whole)
    if rest:
        yield rest
