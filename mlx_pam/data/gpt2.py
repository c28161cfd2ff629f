"""GPT-2's byte-pair encoding, from the rank table that the package ships."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import lzma
import re
from collections.abc import Iterable, Iterator

import numpy as np
import tiktoken

from mlx_pam.config import VOCABULARIES
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
_SEAM = re.compile(
    f"(?<=[^{_SPACE}])(?=[{_SPACE}])"  # white space begins
    f"|(?<=[{_SPACE}])(?!(?<=\\r)\\n)(?=[{_SPACE}][^{_SPACE}])"  # the last of a run, CRLF whole
)


def pieces(blocks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """Text in pieces that have, encoded one by one, the tokens of the whole.

    A piece ends at the first place, after `size` characters, where `PATTERN` splits whatever stands
    before and after. So a text of any length is encoded as a stream, and a run of a million spaces
    is never followed by a letter, which would overflow the stack of tiktoken's regular expression.
    """
    rest = ""
    for block in blocks:
        rest += block
        while seam := _SEAM.search(rest, size):
            yield rest[: seam.start()]
            rest = rest[seam.start() :]
    if rest:
        yield rest


class BytePairTokenizer(Tokenizer):
    """What an encoding of tiktoken, whose pattern is `PATTERN`, makes of a text."""

    def __init__(self, encoding: tiktoken.Encoding, fingerprint: str) -> None:
        self._encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.end_of_text = encoding.eot_token
        self.fingerprint = fingerprint

    def pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        return pieces(blocks)

    def encode_piece(self, piece: str, begins: bool = True) -> np.ndarray:
        return self._encoding.encode_to_numpy(piece, disallowed_special=()).astype(self.dtype)

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
