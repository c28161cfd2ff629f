"""What a tokenizer is: text to token ids and back, at once or one token at a time."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import numpy as np

from mlx_pam.config import VOCABULARIES, require_choice
from mlx_pam.data.text import whole_characters


class Tokenizer(ABC):
    """Text to token ids and back. A special marker inside a text is ordinary text."""

    name: str
    """What a checkpoint records."""
    vocab_size: int
    end_of_text: int
    """The token that stands between documents; its text is `<|endoftext|>`."""
    fingerprint: str
    """Hex digest over all that decides the tokens of a text."""

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that holds every token."""
        return np.dtype("uint16" if self.vocab_size <= 1 << 16 else "uint32")

    @abstractmethod
    def pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        """A text of any length, given in blocks, in pieces for `encode_piece`; none is empty."""

    @abstractmethod
    def encode_piece(self, piece: str) -> np.ndarray:
        """The tokens of one of `pieces`; other threads run meanwhile."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; `KeyError` where the vocabulary has no such token."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text of any length. `decode` gives the text back."""
        pieces = self.pieces([whole_characters(text)])
        return [token for piece in pieces for token in self.encode_piece(piece).tolist()]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


class StreamDecoder:
    """Tokens to text one at a time: the pieces and the rest, joined, are `decode` of all tokens.

    Characters come out whole. U+FFFD stands only for bytes that no later token can complete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes: "" while inside one."""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the tokens end inside a character, else ""."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def get_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by the name that a checkpoint records."""
    require_choice("tokenizer", name, tuple(VOCABULARIES))
    if name == "bytes":
        from mlx_pam.data.byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    from mlx_pam.data.gpt2 import gpt2

    return gpt2()
