"""Damage to bytes, to JSON records and to the headers of tensor files, small or gross."""

from __future__ import annotations

import copy
import json
import math
import struct
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 10**400,
    0.5, -0.0, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf,
    "", " ", "x", "0", "-1", "1e999", "nan", "pam", "gpt2", "\x00", "\ud800", "🙂", "a" * 5000,
    "..", "../..", "/dev/zero", "a/b", "\x1b[2J", "[red]x[/red]", "[/x]", "{0}", "%s",
    [], [[]], [1], ["x"], {}, {"x": 1}, {"bytes": 0}, [None] * 50,
)  # fmt: skip
"""Values that may stand in a record instead of those that belong there."""

RAW = (
    b"", b" ", b"null", b"[]", b"{}", b"{", b"}", b'"', b"NaN", b"1e999", b"9" * 5000, b"\xff",
    b"\xef\xbb\xbf{}", b'{"a":1}{"a":2}', b"[" * 100_000, b'{"a":' * 50_000, b"\x00" * 64,
    b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.", b"PK\x03\x04", b"\x1f\x8b", b"PAR1",
)  # fmt: skip
"""Whole files of something else."""


def of_bytes(random: Random, raw: bytes) -> bytes:
    """The bytes with one to four places changed, or cut, or something else altogether."""
    if random.random() < 0.25:
        return random.choice(RAW)
    changed = bytearray(raw)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        length = random.choice((1, 1, 2, 4, 8, 64))
        kind = random.randrange(6)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = random.randbytes(length)
        elif kind == 3:
            changed[at : at + length] = random.randbytes(length)
        elif kind == 4:
            changed[at:at] = changed[at : at + length] * random.choice((2, 100))
        elif at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def of_record(random: Random, record: Any) -> Any:
    """The record with one to three places changed: odd values, more, fewer or renamed entries."""
    holder = {"": copy.deepcopy(record)}
    for _ in range(random.randint(1, 3)):
        inside = random.choice(_containers(holder))
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            continue
        key = random.choice(keys)
        kind = random.randrange(6)
        if kind <= 2:
            inside[key] = copy.deepcopy(random.choice(ODD))
        elif kind == 3 and inside is not holder:
            del inside[key]
        elif kind == 4 and isinstance(inside, dict) and inside is not holder:
            inside[str(random.choice(ODD))[:5000]] = inside.pop(key)
        elif type(inside[key]) in (int, float):
            inside[key] *= random.choice((-1, 2, 1000, 10**12))
    return holder[""]


def of_json(random: Random, record: Any) -> bytes:
    """A JSON file that holds the record, changed as a record or as bytes."""
    if random.random() < 0.25:
        return of_bytes(random, json.dumps(record, indent=2).encode())
    return to_json(of_record(random, record))


def of_tensors(random: Random, raw: bytes) -> bytes:
    """A safetensors file with a changed header, a wrong length before it, or changed bytes."""
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = raw[8 : 8 + length], raw[8 + length :]
    kind = random.randrange(4)
    if kind == 0:
        return of_bytes(random, raw)
    if kind == 1:
        lies = (0, 1, length - 1, length + 1, len(raw), 10**8, 2**31, 2**32, 2**63, 2**64 - 1)
        return struct.pack("<Q", random.choice(lies)) + header + data
    changed = to_json(of_record(random, json.loads(header)))
    if kind == 3:
        data = data[: random.randrange(len(data) + 1)] + random.randbytes(random.choice((0, 4)))
    return struct.pack("<Q", len(changed)) + changed + data


def to_json(record: Any) -> bytes:
    """JSON as Python writes it, which has words for infinity and NaN."""
    return json.dumps(record, ensure_ascii=True).encode()


def _containers(record: Any) -> list[Any]:
    """Every object and list in a record, itself first."""
    found, rest = [], [record]
    while rest:
        one = rest.pop()
        if isinstance(one, (dict, list)):
            found.append(one)
            rest += one.values() if isinstance(one, dict) else one
    return found
