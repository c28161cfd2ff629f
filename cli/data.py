"""`mlx_pam data`: the corpora whose tokens are kept on the disk."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.filesize import decimal

from mlx_pam.cache import cache_folder
from mlx_pam.cli.arguments import parse


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """List the corpora whose tokens are kept in the cache, the one used last first.

    A corpus that is removed is tokenised again when a run wants it.
    """

    remove: str | None = None
    """Remove the corpora of this name, the one whose fingerprint begins so, or all."""
    json: bool = False
    """Print the list as JSON; of what is removed, where something is."""


def run(argv: list[str]) -> int:
    description = inspect.getdoc(DataConfig) or ""
    config = parse(DataConfig, argv, prog="mlx_pam data", description=description)

    from mlx_pam.data.cached import cached, remove  # heavy: help does without

    cache = cache_folder()
    found = cached(cache) if config.remove is None else remove(cache, config.remove)
    if config.json:
        print(json.dumps([_record(each) for each in found], indent=1))
        return 0
    what = "kept" if config.remove is None else "removed"
    for each in found:
        name = each.name or "(damaged, or of another version)"
        tokens = f"{sum(each.tokens.values()):,} tokens" if each.tokens else ""
        age = str(timedelta(seconds=round(each.unused)))
        kind, size = each.tokenizer, decimal(each.size)
        print(f"{each.fingerprint[:8]}  {name:<24} {kind:<14} {tokens:>22}  {size:>9}  {age}")
    size = decimal(sum(each.size for each in found))
    print(f"{what}: {len(found)} corpora, {size}, in {cache}; last column: time since the last use")
    return 0


def _record(each: Any) -> dict[str, Any]:
    return {**vars(each), "path": str(each.path)}
