"""Bytes as tokens: a text is its UTF-8, and one more token stands between documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from mlx_pam.config import VOCABULARIES
from mlx_pam.data.borders import cut
from mlx_pam.data.tokenizer import Tokenizer

MARK = b"<|endoftext|>"


class ByteTokenizer(Tokenizer):
    """Tokens 0 to 255 are bytes; 256 is end-of-text. One text, one sequence."""

    name = "bytes"
    vocab_size = VOCABULARIES["bytes"].size
    end_of_text = VOCABULARIES["bytes"].end_of_text
    fingerprint = hashlib.sha256(b"UTF-8 bytes, 256 is end of text").hexdigest()

    def pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        return cut(blocks, lambda before, after: True)  # a text may be cut anywhere

    def encode_piece(self, piece: str, begins: bool = True) -> np.ndarray:
        return np.frombuffer(piece.encode(), np.uint8).astype(self.dtype)

    def token_bytes(self, token: int) -> bytes:
        if token == self.end_of_text:
            return MARK
        if not 0 <= token < self.end_of_text:
            raise KeyError(token)
        return bytes([token])
