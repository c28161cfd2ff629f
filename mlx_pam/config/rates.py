"""Tables of peak learning rates: the package's own, and those that a search has written.

    {"pam": {"5m": {"rate": 0.004, "origin": "searched", "tokens": 327680, "tokenizer": "gpt2",
                    "data": "sample", "tried": [{"rate": 0.002, "validation_loss": 6.64}, ...]}}}

The loss of a rate is null where it was not finite. What was not searched has rate and origin alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_pam.config.rules import require, require_choice, require_range
from mlx_pam.errors import ConfigError

PACKAGED = Path(__file__).with_name("learning_rates.json")
SEARCHED, NOT_SEARCHED = "searched", "not searched"


@dataclass(frozen=True, kw_only=True)
class PeakRate:
    """A peak learning rate, and in a few words where it comes from."""

    value: float
    origin: str


@functools.cache
def packaged_rate(family: str, scale: str) -> PeakRate:
    """The rate of the tuned recipe."""
    return _peak_rate(json.loads(PACKAGED.read_text("utf-8"))[family][scale])


def rate_from(path: Path, family: str, scale: str) -> PeakRate:
    """The rate in a file that `mlx_pam sweep --search` wrote; `ConfigError` where there is none."""
    rule = "a file of learning rates, as `mlx_pam sweep --search` writes one"
    try:
        table = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"rates must be {rule}, got {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"rates must be {rule}, got {path}: not JSON ({error})") from error
    entries = table.get(family) if isinstance(table, dict) else None
    entry = entries.get(scale) if isinstance(entries, dict) else None
    if entry is None:
        raise ConfigError(
            f"rates must hold a rate for model {family} at scale {scale}, got {path}, which has "
            f"{_in_words(table)}: search it with `mlx_pam sweep --models {family} --scales {scale} "
            "--search RATES`, or give --lr"
        )
    try:
        return _peak_rate(entry)
    except (ConfigError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"rates must be {rule}, got {path}, whose entry for {family} at {scale} cannot be "
            f"read: {type(error).__name__}: {error}"
        ) from error


def _peak_rate(entry: Mapping[str, Any]) -> PeakRate:
    rate, origin = entry["rate"], entry["origin"]
    require_range("rate", rate, 0.0, 1.0, open_least=True)
    require_choice("origin", origin, (SEARCHED, NOT_SEARCHED))
    if origin == SEARCHED:
        rates, tokens = len(entry["tried"]), entry["tokens"]
        require(type(tokens) is int, "tokens", "a whole number", tokens)
        origin = f"searched: {rates} rates, {tokens:,} tokens of {entry['data']} each"
    return PeakRate(value=rate, origin=origin)


def _in_words(table: object) -> str:
    """The pairs that a table holds."""
    if not isinstance(table, dict):
        return "no table"
    pairs = [
        f"{family} {scale}"
        for family, entries in table.items()
        if isinstance(entries, dict)
        for scale in entries
    ]
    return ", ".join(pairs) or "none"
