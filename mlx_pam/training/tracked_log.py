"""The log with trackers behind it: each record is passed on, once the log itself has it.

An event's numbers are named after it, `train/loss` or `validation/perplexity`, and go by step. A
tracker is told each of them once, whatever is resumed; one that fails is left out from there on.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlx_pam import processes
from mlx_pam.errors import ConfigError
from mlx_pam.training.metrics import (
    LOG,
    Log,
    NoLog,
    Record,
    SkippedStep,
    StepRecord,
    records,
)
from mlx_pam.training.plan import Plan
from mlx_pam.training.trackers import TRACKERS, TrackedRun, Tracker

GROUPS = {"step": "train", "evaluation": "validation"}
"""Under which name an event's numbers go; those of other events go under the event's."""


def open_tracked_log(plan: Plan, resumed: int | None, say: Callable[[str], None]) -> Log:
    """The log that this process writes, with the trackers that were asked for behind it.

    Nothing is written to the log before all trackers have begun; `ConfigError` if one cannot.
    """
    return TrackedLog(plan, resumed, say) if processes.is_main() else NoLog()


@dataclass(kw_only=True)
class Past:
    """What earlier sessions of a run told its trackers."""

    id: str = field(default_factory=lambda: secrets.token_hex(4))
    """The run's, as in `TrackedRun`."""
    told: dict[str, dict[str, int]] = field(default_factory=dict)
    """tracker -> event -> the last step of which it was told."""


class TrackedLog(Log):
    """A log that passes each record on, once the log itself has it."""

    def __init__(self, plan: Plan, resumed: int | None, say: Callable[[str], None]) -> None:
        config = plan.config
        self._say = say
        self._failed = True  # until the log is told how the session ended
        self._past = Past() if resumed is None else _read_past(config.run_folder)
        self._trackers: dict[str, Tracker] = {}
        self._begin(
            config.track,
            TrackedRun(
                folder=config.run_folder,
                id=self._past.id,
                resumed=resumed,
                config=config.to_dict() | {"plan": plan.record()},
            ),
        )
        try:
            super().__init__(config.run_folder, resumed)
        except BaseException:
            self._close_trackers()
            raise

    def write(self, event: str, record: StepRecord | SkippedStep | Record) -> None:
        fields = dict(record) if isinstance(record, dict) else asdict(record)
        if event == "start" and (self._trackers or self._past.told):
            fields["tracked"] = asdict(self._past)
        super().write(event, fields)
        self._failed = event != "end"
        if event == "start" or "step" not in fields:
            return  # what the former holds, the trackers were told as they began
        step, (numbers, texts) = fields["step"], _values(event, fields)
        if not (numbers or texts):
            return
        for name, tracker in list(self._trackers.items()):
            if step > self._past.told.get(name, {}).get(event, -1):
                self._ask(name, tracker.log, step, numbers, texts)

    def sync(self) -> None:
        super().sync()
        for name, tracker in list(self._trackers.items()):
            self._ask(name, tracker.flush)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._close_trackers()

    def _begin(self, names: Sequence[str], run: TrackedRun) -> None:
        for name in dict.fromkeys(names):
            try:
                tracker = self._trackers[name] = TRACKERS[name](run)
            except Exception as error:
                self._close_trackers()
                raise ConfigError(
                    f"track must name trackers that can begin, got {name}: {_in_words(error)}; "
                    "try its offline mode, or leave it out"
                ) from error
            self._say(f"track    {name}: {tracker.where}")
            last = max(self._past.told.get(name, {}).values(), default=0)
            if tracker.rewinds:
                self._past.told.pop(name, None)
            elif last > (run.resumed or 0):
                self._say(f"note: {name} has the steps to {last:,} and is not told of them again")

    def _close_trackers(self) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                self._ask(name, tracker.close, self._failed)
            except KeyboardInterrupt:
                self._say(f"note: {name} was left before it had everything")

    def _ask(self, name: str, method: Callable[..., None], *arguments: Any) -> None:
        """Call a tracker; after its first failure, which is said, it is left out."""
        try:
            method(*arguments)
        except Exception as error:
            del self._trackers[name]
            self._say(
                f"note: {name} failed ({_in_words(error)}); the run goes on without it, and {LOG} "
                "has everything"
            )


def _read_past(run: Path) -> Past:
    """From the log as the last session left it, before what lies beyond a checkpoint is cut off."""
    past, names = Past(), ()
    with contextlib.suppress(FileNotFoundError):
        for record in records(run):
            event, step = record["event"], record.get("step", 0)
            if event == "start":
                past = Past(**record["tracked"]) if "tracked" in record else past
                names = record["config"].get("track", ())
            for name in names:
                told = past.told.setdefault(name, {})
                told[event] = max(step, told.get(event, -1))
    return past


def _values(event: str, fields: Record) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers and the text of an event, under the names that trackers are given."""
    group = GROUPS.get(event, event)
    left_out = {"step"} if event == "step" else {"step", "tokens"}
    entries: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            entries |= {f"{group}/{key}/{part}": entry for part, entry in value.items()}
        elif key not in left_out:
            entries[f"{group}/{key}"] = value
    numbers = {name: entry for name, entry in entries.items() if type(entry) in (int, float)}
    texts = {f"{group}/text": fields["prompt"] + fields["text"]} if event == "sample" else {}
    return numbers, texts


def _in_words(error: Exception) -> str:
    """One line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
