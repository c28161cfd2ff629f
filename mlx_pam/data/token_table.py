"""The bytes of each token of a `tokenizer.json`, where its decoder makes a text token by token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlx_pam.config import TOKENIZER, TokenizerFile
from mlx_pam.errors import ConfigError

SPACE = "\u2581"
"""Stands for a space in vocabularies after sentencepiece's manner."""

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def token_table(file: TokenizerFile) -> dict[int, bytes]:
    """The bytes of every token; raises `ConfigError` for decoders that look at their neighbours.

    Supported are ByteLevel, and Replace, Metaspace and ByteFallback in any combination. A space
    that the decoder strips from the beginning of a text is left in.
    """
    decoders = steps(file.spec.get("decoder"), "decoders")
    kinds = [decoder.get("type") for decoder in decoders if decoder.get("type") != "Fuse"]
    mark = file.spec["model"].get("end_of_word_suffix")
    if mark and not any(_replaces(decoder, mark) for decoder in decoders):
        raise ConfigError(
            f"the model of a {TOKENIZER} must have no end_of_word_suffix that its decoder leaves "
            f"in the text, got {mark!r}: take another tokenizer"
        )
    if kinds == ["ByteLevel"]:
        characters = byte_characters()
        return {
            number: piece.encode() if number in file.added else _of_level(piece, characters)
            for number, piece in file.tokens.items()
        }
    replaced: dict[str, str] = {}
    for decoder in decoders:
        kind = decoder.get("type")
        if kind == "Replace" and isinstance(decoder.get("pattern", {}).get("String"), str):
            replaced[decoder["pattern"]["String"]] = decoder["content"]
        elif kind == "Metaspace":
            replaced[decoder["replacement"]] = " "
        elif not (kind in ("ByteFallback", "Fuse") or _is_of_the_beginning(decoder)):
            raise _unfit(decoder)
    if not replaced:
        raise _unfit(file.spec.get("decoder"))
    falls_back = "ByteFallback" in kinds
    table = {}
    for number, piece in file.tokens.items():
        byte = _BYTE.fullmatch(piece) if falls_back else None
        if byte:
            table[number] = bytes.fromhex(byte[1])
        else:
            if not file.added.get(number):  # a special token is shown as it is written
                for old, new in replaced.items():
                    piece = piece.replace(old, new)
            table[number] = piece.encode()
    return table


def steps(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The parts of a Sequence, one after another, and of anything else itself.

    Raises `ConfigError` for what has no type, as older files may, which the library itself reads.
    """
    if part is None:
        return []
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise ConfigError(
            f"{name} of a {TOKENIZER} must each be an object with a type, got "
            f"{str(part)[:60]!r}: take another tokenizer"
        )
    if part.get("type") == "Sequence":
        return [step for each in part[name] for step in steps(each, name)]
    return [part]


def byte_characters() -> dict[str, int]:
    """The characters that stand for the 256 bytes in byte-level vocabularies, as GPT-2 has them.

    A printable Latin-1 character is itself; the other bytes, in order, are U+0100 and on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    of = {chr(byte): byte for byte in printable}
    return of | {chr(0x100 + number): byte for number, byte in enumerate(others)}


def _of_level(piece: str, characters: Mapping[str, int]) -> bytes:
    """The bytes that the characters of a token stand for; a token of others is its own text."""
    if all(character in characters for character in piece):
        return bytes(characters[character] for character in piece)
    return piece.encode()


def _replaces(decoder: Mapping[str, Any], mark: str) -> bool:
    """Whether it puts something else in a mark's place."""
    return decoder.get("type") == "Replace" and decoder.get("pattern") == {"String": mark}


def _is_of_the_beginning(decoder: Mapping[str, Any]) -> bool:
    """Whether it strips a space from the beginning of the text, and nothing else."""
    wanted = {"type": "Strip", "content": " ", "stop": 0}
    return wanted.items() <= decoder.items() and decoder.get("start") in (0, 1)


def _unfit(decoder: Mapping[str, Any] | None) -> ConfigError:
    kind = decoder.get("type") if decoder else None
    return ConfigError(
        f"the decoder of a {TOKENIZER} must be ByteLevel, or of Replace, Metaspace, ByteFallback, "
        f"Fuse and a Strip of one leading space, got {kind}, which does not give the text of each "
        "token by itself: take another tokenizer"
    )
