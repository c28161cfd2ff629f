"""Where rows of results go, a line of JSON each: the repository's own folder, or this one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

OWN = Path(__file__).with_name("results")
RESULTS = OWN if OWN.is_dir() else Path()
"""The repository keeps its rows; where the package is installed alone, the current folder does."""


def add(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add the rows to a file, which need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
