"""A tokenizer from a `tokenizer.json`, through the library `tokenizers`; nothing is fetched."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mlx_pam.config import TOKENIZER, TokenizerFile
from mlx_pam.data.borders import cut
from mlx_pam.data.token_table import SPACE, steps, token_table
from mlx_pam.data.tokenizer import Tokenizer
from mlx_pam.errors import ConfigError

PROBE = "The quick brown fox, 1234 = four.\n\nIt's naïve 漢字 🙂"


class HuggingFaceTokenizer(Tokenizer):
    """What the file says of normalisation, words and merges, and none of what it adds to a text.

    Special tokens inside a text are ordinary text, no token is put before or behind one, nothing is
    truncated or padded, and merges are not dropped at random.
    """

    name = TOKENIZER

    def __init__(self, file: TokenizerFile) -> None:
        """Raises `ConfigError` without the library, or for a tokenizer that cannot be used here."""
        vocabulary = file.vocabulary
        self.vocab_size, self.end_of_text = vocabulary.size, vocabulary.end_of_text
        self.fingerprint = file.fingerprint
        self.files = file.files
        spec = _of_ordinary_text(file)
        self._library = _library_tokenizer(spec)
        self._table = token_table(file)
        inner, adds_space, self.leading_space = _without_leading_space(spec)
        self._prefix = " " if adds_space else ""
        if adds_space:
            expected = self._library.encode(PROBE, add_special_tokens=False).ids
            self._library = _library_tokenizer(inner)
            if self.encode_piece(PROBE).tolist() != expected:
                raise ConfigError(
                    f"a {TOKENIZER} must put its space before a text as Prepend or Metaspace does "
                    "alone, got one whose other steps change it: take another tokenizer"
                )

    def pieces(self, blocks: Iterable[str]) -> Iterator[str]:
        """Cut where a border makes no difference to the tokens around it; short texts are whole."""
        return cut(blocks, self._is_border)

    def encode_piece(self, piece: str, begins: bool = True) -> np.ndarray:
        text = self._prefix + piece if begins else piece
        (encoded,) = self._library.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoded.ids, self.dtype)

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise KeyError(token)
        return self._table.get(token, b"")  # a number that no token has is no text

    def _is_border(self, before: str, after: str) -> bool:
        parts = [self.encode_piece(part, begins=False) for part in (before, after, before + after)]
        return np.array_equal(np.concatenate(parts[:2]), parts[2])


def _library_tokenizer(spec: Mapping[str, Any]) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            f"tokenizer must be gpt2 or bytes without the package tokenizers, got a {TOKENIZER}: "
            "pip install 'mlx_pam[tokenizers]'"
        ) from error
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(
            f"tokenizer must be a {TOKENIZER} that tokenizers {tokenizers.__version__} reads, got "
            f"one it refuses ({error}): take another, or another version of the package"
        ) from error


def _of_ordinary_text(file: TokenizerFile) -> dict[str, Any]:
    """The tokenizer without what it adds, its special tokens named as no text can be."""
    special = {number for number, is_special in file.added.items() if is_special}
    secret = secrets.token_hex(16)
    names = {
        file.tokens[number]: f"{secret}-{number}" for number in sorted({*special, file.end_of_text})
    }
    model = dict(file.spec["model"])
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(piece, piece): n for piece, n in model["vocab"].items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "dropout" in model:
        model["dropout"] = None
    apart = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        token | apart | {"content": names[token["content"]]} if token["content"] in names else token
        for token in file.spec.get("added_tokens") or ()
    ]
    nothing = dict.fromkeys(("post_processor", "truncation", "padding"))
    return {**file.spec, "model": model, "added_tokens": added, **nothing}


def _without_leading_space(spec: Mapping[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    """The tokenizer without the space that it puts before a text, so that pieces can be encoded.

    Then whether that space is to be put there, and whether the first token of a text bears one.
    """
    normalizers = steps(spec.get("normalizer"), "normalizers")
    words = steps(spec.get("pre_tokenizer"), "pretokenizers")
    kept = [each for each in normalizers if each["type"] != "Prepend"]
    adds = len(kept) < len(normalizers)
    if any(each not in kept and each["prepend"] not in (SPACE, " ") for each in normalizers):
        raise ConfigError(f"a {TOKENIZER} must put a space before a text, or nothing: take another")
    bears = adds
    if words:
        first, *others = words
        if _puts_space(first):
            never = {"prepend_scheme": "never"} if first["type"] == "Metaspace" else {}
            words = [{**first, "add_prefix_space": False, **never}, *others]
            adds = bears = True
        bears = bears or any(map(_puts_space, others))  # before each word
    return (
        {
            **spec,
            "normalizer": {"type": "Sequence", "normalizers": kept} if kept else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": words} if words else None,
        },
        adds,
        bears,
    )


def _puts_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace" and "prepend_scheme" in step:
        return step["prepend_scheme"] != "never"
    return step["type"] in ("ByteLevel", "Metaspace") and step.get("add_prefix_space", True)
