"""GPT-2's byte-pair encoding, from the rank table that the package ships."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import itertools
import lzma
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tiktoken

from mlx_pam.config import VOCABULARIES
from mlx_pam.data.text import plain
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import DataError

RANKS_FILE = "gpt2.tiktoken.xz"
RANKS_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
END_OF_TEXT = {"<|endoftext|>": VOCABULARIES["gpt2"].end_of_text}
PATTERN = (  # GPT-2's pattern in tiktoken's form: same matches, possessive quantifiers
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
)

PIECE = 1 << 16
"""Characters of text, about, that are encoded at a time."""

_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # \s of PATTERN
_SPACES = re.compile(f"[{_SPACE}]")
_SEAM = re.compile(
    f"(?<=[^{_SPACE}])(?=[{_SPACE}])"  # white space begins
    f"|(?<=[{_SPACE}])(?!(?<=\\r)\\n)(?=[{_SPACE}][^{_SPACE}])"  # the last of a run, CRLF whole
)


REACH = 1 << 12
"""Characters behind a piece's size in which `PATTERN` is waited for to split."""

Inner = Callable[[str, int], int | None]
"""A place from a number of characters on, within `REACH`, where a text can be cut; None if none."""


def pieces(blocks: Iterable[str], size: int = PIECE, inner: Inner | None = None) -> Iterator[str]:
    """Text in pieces that have, encoded one by one, the tokens of the whole.

    A piece ends at the first place, after `size` characters, where `PATTERN` splits whatever stands
    before and after. So a text of any length is encoded as a stream, and a run of a million spaces
    is never followed by a letter, which would overflow the stack of tiktoken's regular expression.
    Where `REACH` characters have no such place, `inner` is asked for one.
    """
    rest = ""
    for block in blocks:
        rest += block
        begin, after = 0, size
        while True:
            reach = begin + after + REACH
            seam = _SEAM.search(rest, begin + after, reach + 2 if inner else len(rest))
            place = seam.start() if seam else None
            if inner and place is None:
                if len(rest) < reach + 2:  # what follows may hold one
                    break
                found = inner(rest[begin:reach], after)
                if found is None:
                    after += REACH
                    continue
                place = begin + found
            if place is None:
                break
            yield rest[begin:place]
            begin, after = place, size
        rest = rest[begin:]
    if rest:
        yield rest


def _kind(character: str) -> str | None:
    """The class of a character in `PATTERN`: letter, number, other or space; None: unknown."""
    if _SPACES.match(character):
        return "S"
    category = unicodedata.category(character)
    if category == "Cn":  # a later Unicode may know it
        return None
    return category[0] if category[0] in "LN" else "O"


class BytePairTokenizer(Tokenizer):
    """What an encoding of tiktoken, whose pattern is `PATTERN`, makes of a text."""

    def __init__(self, encoding: tiktoken.Encoding, fingerprint: str) -> None:
        self._encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding.eot_token
        self.fingerprint = fingerprint
        self._longest = max(map(len, encoding.token_byte_values()))

    def pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        return pieces(blocks, inner=self._inner)

    def encode_piece(self, piece: str, begins: bool = True) -> np.ndarray:
        return self._encoding.encode_to_numpy(piece, disallowed_special=()).astype(self.dtype)

    def _inner(self, text: str, size: int) -> int | None:
        """A place from `size` on where the text can be cut, whatever follows it."""
        kinds = set()
        for place, (before, after) in enumerate(
            itertools.pairwise(map(_kind, text[size - 1 :])), size
        ):
            border = before != after and None not in (before, after) and "S" not in (before, after)
            if border and text[place - 1] != "'":  # the beginning of 's, perhaps
                return place
            kinds |= {before, after}
        if len(kinds) > 1 or None in kinds or "\r" in text[size - 1 :]:
            return None
        before = plain(text[:size])  # as it is encoded
        place = self._inside_run(before + text[size:], len(before), kinds == {"S"})
        return place and size + place - len(before)

    def _inside_run(self, text: str, size: int, white: bool) -> int | None:
        """A place in the run that the text ends with, between two tokens of whatever holds it.

        Tokens are those of a text exactly if each two neighbors are those of the two by themselves.
        Whatever follows, the tokens here are those of the whole up to a cut less than the longest
        token before the end. So a border stays if, for each such cut, the same token follows it.
        """
        if white:
            text = text[:-1]  # which may go with what follows
        end = len(text.encode())
        tokens = self._encoding.encode(text, disallowed_special=())
        borders = [0, *itertools.accumulate(len(self.token_bytes(token)) for token in tokens)]
        raw, least = text.encode(), len(text[:size].encode())
        longest = self._longest
        for number in range(len(tokens) - 1, 0, -1):
            border = borders[number]
            if border < least:
                break
            inside = raw[border] & 0xC0 != 0x80  # not within a character
            if (
                inside
                and end - border > 2 * longest
                and all(
                    self._encoding._encode_single_piece(raw[border:cut])[0] == tokens[number]
                    for cut in range(end - longest + 1, end + 1)
                )
            ):
                return len(raw[:border].decode())
        return None

    def token_bytes(self, token: int) -> bytes:
        return self._encoding.decode_single_token_bytes(int(token))


def read_ranks(compressed: bytes) -> dict[bytes, int]:
    """The rank of each token, after a check that the table is OpenAI's to the byte."""
    try:
        table = lzma.decompress(compressed)
    except lzma.LZMAError:
        table = b""
    if hashlib.sha256(table).hexdigest() != RANKS_SHA256:
        raise DataError(f"{RANKS_FILE} of the installed package is damaged: reinstall mlx_pam")
    return {
        base64.b64decode(token): int(rank) for token, rank in map(bytes.split, table.splitlines())
    }


@functools.cache
def gpt2() -> Tokenizer:
    """GPT-2's tokenizer: 50,257 tokens, the last of them end-of-text."""
    resource = importlib.resources.files("mlx_pam.data") / RANKS_FILE
    ranks = read_ranks(resource.read_bytes())
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=PATTERN,
        mergeable_ranks=ranks,
        special_tokens=END_OF_TEXT,
        explicit_n_vocab=len(ranks) + len(END_OF_TEXT),
    )
    settings = f"{RANKS_SHA256} {PATTERN} {END_OF_TEXT}"
    return BytePairTokenizer(encoding, hashlib.sha256(settings.encode()).hexdigest())
