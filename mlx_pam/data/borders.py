"""Long texts in pieces, for tokenizers of which nothing is known but the tokens that they give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

PIECE = 1 << 16
"""Characters, about, in a piece; a text of twice as many is whole."""

CONTEXT = 256
"""Characters on each side that are asked whether a border makes a difference."""

TRIES = 64

_WHITE = re.compile(r"(?<=\S)(?=\s)|(?<=\s)(?!(?<=\r)\n)(?=\s?\S)")
"""Where white space begins or ends, and before the last of it; a CRLF stays whole."""


def cut(
    blocks: Iterable[str], is_border: Callable[[str, str], bool], size: int = PIECE
) -> Iterator[str]:
    """A text in pieces, cut at the first place behind `size` characters that `is_border` allows.

    It is asked with the characters before and after; places at white space come first, then any.
    Where none of `TRIES` of each serves, the cut is at `size`. The pieces depend on the text alone,
    not on the blocks it comes in.
    """
    rest = ""
    for block in blocks:
        rest += block
        begin = 0
        while len(rest) - begin >= 2 * size + CONTEXT:
            end = _border(rest, begin, size, is_border)
            yield rest[begin:end]
            begin = end
        rest = rest[begin:]
    if rest:
        yield rest


def _border(text: str, begin: int, size: int, is_border: Callable[[str, str], bool]) -> int:
    place = begin + size
    white = (match.start() for match in _WHITE.finditer(text, place, place + size))
    anywhere = (
        at for at in range(place, place + min(TRIES, size)) if text[at - 1 : at + 1] != "\r\n"
    )
    for at in chain(islice(white, TRIES), anywhere):
        if is_border(text[max(begin, at - CONTEXT) : at], text[at : at + CONTEXT]):
            return at
    return place
