"""A study of scaling as one JSON object."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from mlx_pam.analysis.scaling.study import Study

ARRAYS = ("samples", "curve")
"""Fields that pictures are drawn from, and that a record goes without."""


def to_json(found: Study, sentences: list[str], **settings: Any) -> str:
    """Every number of the study; what is not known, and what is beyond all bounds, is null."""
    record = {**settings, **_plain(found), "sentences": sentences}
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value) if f.name not in ARRAYS]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str, type(None))) else str(value)
