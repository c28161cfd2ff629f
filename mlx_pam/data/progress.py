"""How far a long reading is, in MB/s too: a bar on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from rich import progress
from rich.console import Console
from rich.errors import LiveError
from rich.filesize import decimal

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Bytes done of one piece of work; shown in the main thread only, where nothing else draws."""

    def __init__(self, what: str, total: int | None = None, shown: bool = True) -> None:
        self.what, self.total, self.done = what, total, 0
        self._shown = shown and threading.current_thread() is threading.main_thread()
        self._console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not (self._shown and self._console.is_terminal),
        )
        self._task = self._bar.add_task(what, total=total)
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        with suppress(LiveError):  # there is a bar already, and rich of that age draws only one
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if kind is None and self._seconds() >= SECONDS_BETWEEN_LINES:
            took = timedelta(seconds=round(self._seconds()))
            self._say(f"{self.what}: {decimal(self.done)} in {took}, {self._speed()}")

    def advance(self, count: int) -> None:
        """So many bytes more are done."""
        self.done += count
        self._bar.advance(self._task, count)
        if self._console.is_terminal:
            return
        if time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._say(f"{self.what}: {decimal(self.done)}{self._of_total()}, {self._speed()}")

    def _of_total(self) -> str:
        if not self.total:
            return ""
        left = max(self.total - self.done, 0) / self.done * self._seconds()
        return f" of {decimal(self.total)}, {timedelta(seconds=round(left))} left"

    def _speed(self) -> str:
        return f"{decimal(int(self.done / self._seconds()))}/s"

    def _seconds(self) -> float:
        return max(time.monotonic() - self._began, 1e-9)

    def _say(self, text: str) -> None:
        if self._shown:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
