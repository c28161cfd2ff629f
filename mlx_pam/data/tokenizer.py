"""What a tokenizer is: text to token ids and back, at once or one token at a time."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from mlx_pam.config import VOCABULARIES, TokenizerFile, read_tokenizer_file
from mlx_pam.data.text import whole_characters


class Tokenizer(ABC):
    """Text to token ids and back. A special marker inside a text is ordinary text."""

    name: str
    """What a checkpoint records."""
    vocab_size: int
    end_of_text: int
    """The token that stands between documents."""
    fingerprint: str
    """Hex digest over all that decides the tokens of a text."""
    leading_space = False
    """Whether the first token of a text bears a space that is not of the text."""
    files: Mapping[str, bytes] = MappingProxyType({})
    """Name and contents of what a checkpoint carries of it."""

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that holds every token."""
        return np.dtype("uint16" if self.vocab_size <= 1 << 16 else "uint32")

    @abstractmethod
    def pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        """A text of any length, given in blocks, in pieces that are encoded one by one.

        Their tokens are those of the whole. None is empty, and none ends inside a CRLF.
        """

    @abstractmethod
    def encode_piece(self, piece: str, begins: bool = True) -> np.ndarray:
        """The tokens of one of `pieces`, the first or another; other threads run meanwhile."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; `KeyError` where the vocabulary has no such token."""

    def encode(self, text: str, begins: bool = True) -> list[int]:
        """The tokens of a text of any length, or of what goes on with one."""
        tokens: list[int] = []
        for number, piece in enumerate(self.pieces([whole_characters(text)])):
            tokens += self.encode_piece(piece, begins and number == 0).tolist()
        return tokens

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD."""
        decoder = StreamDecoder(self)
        return "".join(map(decoder.push, ids)) + decoder.flush()


class StreamDecoder:
    """Tokens to text one at a time: the pieces and the rest, joined, are `decode` of all tokens.

    Characters come out whole. U+FFFD stands only for bytes that no later token can complete.
    """

    def __init__(self, tokenizer: Tokenizer, begins: bool = True) -> None:
        self._tokenizer = tokenizer
        self._begins = begins
        """Whether the next token is the first of a text."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes: "" while inside one."""
        raw = self._tokenizer.token_bytes(token)
        if self._begins and self._tokenizer.leading_space:
            raw = raw.removeprefix(b" ")
        self._begins = token == self._tokenizer.end_of_text
        return self._utf8.decode(raw)

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the tokens end inside a character, else ""."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def get_tokenizer(name: str | TokenizerFile) -> Tokenizer:
    """The tokenizer of that name (`VOCABULARIES`), or else of the file or folder of that name."""
    if isinstance(name, TokenizerFile) or name not in VOCABULARIES:
        from mlx_pam.data.hugging_face import HuggingFaceTokenizer

        file = name if isinstance(name, TokenizerFile) else read_tokenizer_file(name)
        return HuggingFaceTokenizer(file)
    if name == "bytes":
        from mlx_pam.data.byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    from mlx_pam.data.gpt2 import gpt2

    return gpt2()
