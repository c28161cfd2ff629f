"""What a run measures, and `log.jsonl`, where each measurement is one line."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_pam.errors import RunError

LOG = "log.jsonl"

Record = dict[str, Any]
"""A line of the log: `event`, the fields of that kind of event, and `time`, seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One update: the loss is the mean over its tokens, before the update."""

    step: int
    tokens: int
    """Tokens trained on so far, earlier sessions of the run included."""
    loss: float
    perplexity: float
    lr: float
    grad_norm: float
    """Global norm of the whole step's gradient before clipping."""
    tokens_per_s: float
    peak_memory: int
    """Most bytes that the arrays have taken at once."""
    elapsed: float
    """Seconds of training so far, earlier sessions of the run included."""


@dataclass(frozen=True, kw_only=True)
class SkippedStep:
    """A step whose update was left out, since its loss or its gradient was not finite."""

    step: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    skipped: int
    """Updates left out so far, earlier sessions of the run included."""
    in_a_row: int


def repetition(tokens: Sequence[int], n: int) -> float:
    """Share of the n-grams that repeat an earlier one: 0 all new, near 1 one loop."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def unique_ratio(tokens: Sequence[int]) -> float:
    """Different tokens as a share of all."""
    return len(set(tokens)) / len(tokens) if tokens else 0.0


class Log:
    """Appends records to a run's log; one is on the disk, whole, before the next begins.

    A run that resumes after step `resumed` first drops what the log holds beyond it, so that each
    step stands there once.
    """

    def __init__(self, run: Path, resumed: int | None = None) -> None:
        self.path = run / LOG
        with self._writing():
            run.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not self.path.is_file():  # to open a pipe would wait
                raise OSError(errno.EINVAL, "it is not a regular file")
            if resumed is not None and self.path.exists():
                os.truncate(self.path, _end_of_step(self.path, resumed))
            self._file = self.path.open("ab", buffering=0)

    def write(self, event: str, record: StepRecord | SkippedStep | Record) -> None:
        """One line: the kind of event, its record and the time of day."""
        fields = record if isinstance(record, dict) else asdict(record)
        line = {"event": event, **fields, "time": round(time.time(), 3)}
        rest = memoryview((to_json(line) + "\n").encode())
        with self._writing():
            while rest:
                rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Have the disk hold every record; called before a checkpoint is written."""
        with self._writing():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._writing():
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write {self.path}: {error.strerror}; put that right and add --resume: the "
                "steps since the last checkpoint are taken again"
            ) from error


class NoLog(Log):
    """What the processes beside the main one keep: nothing."""

    def __init__(self) -> None:
        pass

    def write(self, event: str, record: StepRecord | SkippedStep | Record) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def records(run: Path, wanted: Callable[[bytes], bool] = lambda line: True) -> Iterator[Record]:
    """The records of a run's log, one by one; `wanted` says of a line whether it is read at all."""
    with (run / LOG).open("rb") as lines:
        for line in filter(wanted, lines):
            record = parse_record(line)
            if record is not None:
                yield record


def parse_record(line: bytes) -> Record | None:
    """What a line of a log holds; None for what a crash left of one, or is no record of ours."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and isinstance(record.get("event"), str):
            return record
    return None


def records_of_step(run: Path, step: int) -> dict[str, Record]:
    """event -> what a run's log says of it at this step."""
    return {r["event"]: r for r in records(run) if r.get("step") == step}


def read_log(run: Path, event: str | None = None) -> list[Record]:
    """The records of a run's log, or those of one kind of event."""
    return [record for record in records(run) if event in (None, record["event"])]


def _end_of_step(path: Path, step: int) -> int:
    """Bytes of the log up to the last record of `step`; a line cut by a crash ends it too."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            try:
                beyond = json.loads(line)["step"] > step or not line.endswith(b"\n")
            except (ValueError, KeyError, TypeError, RecursionError):
                break
            if beyond:
                break
            end += len(line)
    return end


def to_json(record: dict[str, Any]) -> str:
    """One line of JSON, which has no NaN and no infinity: they are written as words."""
    return json.dumps(_plain(record), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
