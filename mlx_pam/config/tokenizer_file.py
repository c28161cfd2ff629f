"""Hugging Face's `tokenizer.json`, read as JSON: which tokens it has, and which ends a text."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_pam.config.vocabulary import Vocabulary
from mlx_pam.errors import ConfigError
from mlx_pam.paths import expand_home

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
"""Beside it: names the token that ends a text, as `eos_token`."""

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""What that token is called where nothing names it, the first that is there."""


@dataclass(frozen=True, eq=False)
class TokenizerFile:
    """A tokenizer as a checkpoint carries it."""

    raw: bytes
    """The file as it is."""
    spec: Mapping[str, Any]
    """What it says."""
    tokens: Mapping[int, str]
    """The vocabulary and the added tokens, as they are written there."""
    added: Mapping[int, bool]
    """The added tokens, and whether each is special."""
    end_of_text: int

    @classmethod
    def of(cls, raw: bytes, settings: bytes | None, where: Path | str) -> TokenizerFile:
        """The tokenizer in the bytes of `tokenizer.json` and of `tokenizer_config.json`, if any.

        Raises `ConfigError` that names `where` unless the former is one and its end of text known.
        """
        try:
            spec = json.loads(raw)
            vocab = spec["model"]["vocab"]
            if isinstance(vocab, list):  # of a unigram model: token and score
                vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
            given = {token["id"]: token for token in spec.get("added_tokens") or ()}
            added = {number: token["special"] for number, token in given.items()}
            tokens = {number: piece for piece, number in vocab.items()}
            tokens |= {number: token["content"] for number, token in given.items()}
            if not tokens or any(type(n) is not int or n < 0 for n in tokens):
                raise ValueError("its tokens are not numbered from 0")
            if not all(isinstance(piece, str) for piece in tokens.values()):
                raise ValueError("its tokens are not texts")
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"tokenizer must be a {TOKENIZER} of the library tokenizers, got {where}, which is "
                f"none, or damaged ({type(error).__name__}: {error})"
            ) from error
        named = _named_end(settings, where)
        special = [tokens[number] for number in sorted(added) if added[number]]
        end_of_text = _end_of_text(named, tokens, special, where)
        return cls(raw, spec, tokens, added, end_of_text)

    @property
    def vocabulary(self) -> Vocabulary:
        """Numbers that no token has, where there are gaps, count as well."""
        return Vocabulary(1 + max(self.tokens), self.end_of_text)

    @property
    def fingerprint(self) -> str:
        """Hex digest over the file and the end of text."""
        facts = f"{hashlib.sha256(self.raw).hexdigest()} {self.tokens[self.end_of_text]}"
        return hashlib.sha256(facts.encode()).hexdigest()

    @property
    def files(self) -> dict[str, bytes]:
        """What `of` makes the same tokenizer of: the file itself, and the name of its end."""
        settings = json.dumps({"eos_token": self.tokens[self.end_of_text]}) + "\n"
        return {TOKENIZER: self.raw, TOKENIZER_CONFIG: settings.encode()}


def read_tokenizer_file(path: Path | str) -> TokenizerFile:
    """The tokenizer in a file, or in the `tokenizer.json` of a folder; raises `ConfigError`."""
    path = expand_home(path)
    try:
        file = path / TOKENIZER if path.is_dir() else path
        beside = file.with_name(TOKENIZER_CONFIG)
        return _read(file, beside if beside.is_file() else None, _stamp(file), _stamp(beside))
    except OSError as error:
        raise ConfigError(
            f"tokenizer must be gpt2, bytes, or a {TOKENIZER} or a folder that holds one, got "
            f"{str(path)!r} ({error.strerror or error})"
        ) from error


@functools.lru_cache(maxsize=2)
def _read(file: Path, beside: Path | None, *stamps: object) -> TokenizerFile:
    return TokenizerFile.of(file.read_bytes(), beside and beside.read_bytes(), file)


def _stamp(file: Path) -> tuple[int, int] | None:
    """What a file that is written anew changes."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _named_end(settings: bytes | None, where: Path | str) -> Any:
    """What `tokenizer_config.json` says of the end of text, if it is there and says anything."""
    try:
        return json.loads(settings or b"{}").get("eos_token")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"the {TOKENIZER_CONFIG} beside {where} must be a JSON object, got none, or a damaged "
            f"one ({type(error).__name__}: {error}): put it right, or take it away"
        ) from error


def _end_of_text(
    named: Any, tokens: Mapping[int, str], special: list[str], where: Path | str
) -> int:
    """The token that is named, or else the first special one of `END_OF_TEXT`."""
    number = {piece: number for number, piece in tokens.items()}
    if named is not None:
        piece = named.get("content") if isinstance(named, dict) else named
        if not isinstance(piece, str) or piece not in number:
            raise ConfigError(
                f"eos_token in the {TOKENIZER_CONFIG} beside {where} must be one of its tokens, "
                f"got {piece!r}"
            )
        return number[piece]
    for piece in END_OF_TEXT:
        if piece in special:
            return number[piece]
    raise ConfigError(
        f"tokenizer must have a special token that ends a text, got {where}, whose special tokens "
        f"are {', '.join(special[:20]) or 'none'}: name it in a {TOKENIZER_CONFIG} beside it, "
        'as in {"eos_token": "..."}'
    )
