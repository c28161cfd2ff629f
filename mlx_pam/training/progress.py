"""What a run shows while it goes: a live line on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mlx_pam.training.metrics import StepRecord

SECONDS_BETWEEN_LINES = 10.0


def duration(seconds: float) -> str:
    """H:MM:SS, with days before it where there are any."""
    return str(timedelta(seconds=round(seconds)))


def open_console(*, stderr: bool, quiet: bool) -> Console:
    """Where a run shows itself; that it cannot be shown any longer ends no run."""
    stream = _Lasting(sys.stderr if stderr else sys.stdout)
    return Console(file=stream, quiet=quiet, force_terminal=False if quiet else None)


class _Lasting:
    """A stream that drops what it cannot write: its reader has gone, or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Lines:
    """Text that stays, line by line, while entered; what is renewed besides overrides the ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self: Shown) -> Shown:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def say(self, text: str) -> None:
        say(self._console, text)


Shown = TypeVar("Shown", bound=Lines)


class PlainDisplay(Lines):
    """Lines for a file or a pipe: the first step, the last, and one about every ten seconds."""

    def __init__(self, console: Console, step: int, last_step: int) -> None:
        super().__init__(console)
        self._last_step = last_step
        self._clock = Clock(step, last_step)
        self._next_line = 0.0

    def step(self, record: StepRecord) -> None:
        """Show a step, if it is time to."""
        left = self._clock.left(record.step)
        if record.step == self._last_step or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            self.say(f"step {record.step:,}/{self._last_step:,} · {figures(record, left)}")

    def busy(self, text: str) -> None:
        """Show what is done between two steps, where that can be taken back."""


class LiveDisplay(PlainDisplay):
    """One line at the foot of a terminal, renewed at each step."""

    def __init__(self, console: Console, step: int, last_step: int) -> None:
        super().__init__(console, step, last_step)
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=last_step, completed=step, figures="")

    def __enter__(self) -> LiveDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def step(self, record: StepRecord) -> None:
        left = self._clock.left(record.step)
        self._progress.update(self._task, completed=record.step, figures=figures(record, left))

    def busy(self, text: str) -> None:
        self._progress.update(self._task, figures=text)


class Clock:
    """Time left by the mean pace of this session, evaluations and checkpoints included."""

    def __init__(self, step: int, last_step: int) -> None:
        self._first, self._last = step, last_step
        self._began = time.monotonic()

    def left(self, step: int) -> float:
        """Seconds from `step` to the last."""
        return (time.monotonic() - self._began) / (step - self._first) * (self._last - step)


def display(console: Console, step: int, last_step: int) -> PlainDisplay:
    """The display that fits where the console writes to."""
    kind = LiveDisplay if console.is_terminal else PlainDisplay
    return kind(console, step, last_step)


def say(console: Console, text: str) -> None:
    """Print text as it is: no markup, no colours of rich's own, no wrapping.

    Characters that the terminal's encoding lacks become question marks: a sample ends no run.
    """
    shown = text.encode(console.encoding, "replace").decode(console.encoding)
    console.print(shown, markup=False, highlight=False, soft_wrap=True)


def figures(record: StepRecord, seconds_left: float) -> str:
    return (
        f"loss {record.loss:.4f} · perplexity {record.perplexity:,.1f} · "
        f"{record.tokens_per_s:,.0f} tokens/s · {duration(seconds_left)} left · "
        f"{decimal(record.peak_memory)}"
    )
