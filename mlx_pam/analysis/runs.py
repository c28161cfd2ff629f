"""The runs in a folder: what each is, how far it has come, and whether it is still at work."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import statistics
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_pam.analysis.curves import number
from mlx_pam.training.lock import LOCK
from mlx_pam.training.metrics import LOG, Record, parse_record, records

RECENT_STEPS = 50
QUIET = 600.0
"""Seconds after which a run whose folder cannot be locked, and whose log is still, is over."""

_STEP = b'{"event": "step"'


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run; None is what its log does not tell."""

    name: str
    path: Path
    state: str
    """running, finished, stopped, interrupted, diverged, crashed, or unreadable."""
    model: str | None = None
    scale: str | None = None
    data: str | None = None
    parameters: int | None = None
    step: int | None = None
    steps: int | None = None
    """Of the whole schedule."""
    tokens: int | None = None
    """Trained on so far."""
    validation_perplexity: float | None = None
    """Of the last evaluation."""
    best_validation_perplexity: float | None = None
    tokens_per_s: float | None = None
    """Median of the last 50 steps."""
    age: float | None = None
    """Seconds since the last record."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in a folder, the one that wrote last first; no damage in any is an error."""
    names = {path: str(path.relative_to(folder)) for path in find_runs(folder)}
    if folder in names:
        names[folder] = folder.resolve().name
    runs = [summarise(path, name) for path, name in names.items()]
    return sorted(runs, key=lambda run: (math.inf if run.age is None else run.age, run.name))


def find_runs(folder: Path) -> list[Path]:
    """The run folders at any depth of a folder, or itself if it is one; not what a run holds."""
    found = []
    for path, inside, files in os.walk(folder):
        if LOG in files:
            found.append(Path(path))
            inside.clear()
        inside[:] = sorted(name for name in inside if not name.startswith("."))
    return found


def summarise(run: Path, name: str) -> RunSummary:
    """What the log of one run tells; of its steps only the last ones are read."""
    lines: deque[bytes] = deque(maxlen=RECENT_STEPS)

    def is_no_step(line: bytes) -> bool:
        if line.startswith(_STEP):
            lines.append(line)
            return False
        return True

    try:
        others = list(records(run, is_no_step))
        written = (run / LOG).stat().st_mtime
    except OSError:
        return RunSummary(name=name, path=run, state="unreadable")
    recent = [record for line in lines if (record := parse_record(line))]
    start: Record = {}
    perplexities: dict[int, float] = {}
    for record in others:
        if record["event"] == "start":
            start, step = record, _get(record, "step", int) or 0
            perplexities = {at: value for at, value in perplexities.items() if at <= step}
        elif record["event"] == "evaluation":
            value = number(record.get("perplexity"))
            if value is not None:
                perplexities[_get(record, "step", int) or 0] = value
    config, plan = _get(start, "config", dict) or {}, _get(start, "plan", dict) or {}
    last = max([*others, *recent], key=lambda record: _get(record, "step", int) or 0, default={})
    speeds = [speed for record in recent if (speed := number(record.get("tokens_per_s")))]
    age = max(0.0, time.time() - (max(map(_time, others + recent), default=0.0) or written))
    return RunSummary(
        name=name,
        path=run,
        state=_state(run, others, _get(last, "step", int), _get(plan, "steps", int), age),
        model=_get(config, "model", str),
        scale=_get(config, "scale", str),
        data=_get(config, "data", str),
        parameters=_get(plan, "parameters", int),
        step=_get(last, "step", int),
        steps=_get(plan, "steps", int),
        tokens=_get(last, "tokens", int),
        validation_perplexity=list(perplexities.values())[-1] if perplexities else None,
        best_validation_perplexity=min(perplexities.values(), default=None),
        tokens_per_s=statistics.median(speeds) if speeds else None,
        age=age,
    )


def _state(run: Path, others: list[Record], step: int | None, steps: int | None, age: float) -> str:
    at_work = is_at_work(run)
    if at_work:
        return "running"
    session: dict[str, Record] = {}
    for record in others:  # of the last session: what it wrote last of each event
        session = {} if record["event"] == "start" else session
        session[record["event"]] = record
    if "start" not in session:
        return "unreadable"
    if "end" in session:
        return _get(session["end"], "status", str) or "finished"
    if "diverged" in session:
        return "diverged"
    saved = _get(session.get("checkpoint", {}), "step", int)
    if saved is not None and saved == steps:
        return "finished"
    if at_work is None and age < QUIET:
        return "running"
    return "stopped" if at_work is None and saved is not None and saved == step else "crashed"


def is_at_work(run: Path) -> bool | None:
    """Whether a run holds the lock of its folder; None where that cannot be told."""
    try:
        lock = (run / LOCK).open("rb")
    except OSError:
        return None
    with lock:
        holder = lock.read()
        if not holder or _is_dead(holder):
            return False
        try:  # this keeps out a run that begins just now, so it is the last thing to ask
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return None
    return False


def _is_dead(holder: bytes) -> bool:
    """Whether it was a process of this machine that held the lock, and is no more."""
    with suppress(ValueError, TypeError, KeyError, OSError, OverflowError, RecursionError):
        record = json.loads(holder)
        if record["host"] == platform.node():
            try:
                os.kill(record["process"], 0)
            except ProcessLookupError:
                return True
    return False


def _get(record: Record, key: str, kind: type) -> Any:
    """The value of a field if it is of this type, else None."""
    value = record.get(key)
    return value if type(value) is kind else None


def _time(record: Record) -> float:
    value = number(record.get("time"))
    return value if value is not None and math.isfinite(value) else 0.0
