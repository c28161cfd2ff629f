"""Ctrl-C, SIGTERM, a closed terminal or a scheduler's warning make a run save and stop."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType

from mlx_pam import processes

URGENT = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Sent by batch schedulers before a time limit: SIGKILL or SIGTERM follows."""
SIGNALS = (*URGENT, signal.SIGHUP, *WARNINGS)
NOTICE = b"\nstopping: this step is finished and saved; once more leaves at once, unsaved\n"
SCHEDULED = b"\nstopping: this step is finished and saved\n"


class Interrupt:
    """While entered, the first of `SIGNALS` only sets `requested`.

    After a SIGINT or SIGTERM the next one acts as usual. The others never do: a terminal that
    closes may send SIGHUP twice, and a scheduler repeats its warning. What was ignored before, as
    SIGHUP is under nohup, stays ignored, and a warning for which the program has a handler of its
    own keeps that handler. Signals reach the main thread only, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                taken = number in WARNINGS and handler != signal.SIG_DFL
                if not taken and handler not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore(SIGNALS)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if number in URGENT:
            self._restore(URGENT)
        if not self.requested and processes.is_main():
            with suppress(OSError):  # the terminal may be gone
                notice = SCHEDULED if number in WARNINGS else NOTICE
                os.write(2, notice)  # unbuffered: this may run in the middle of another write
        self.requested = True

    def _restore(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            if number in self._previous:
                signal.signal(number, self._previous.pop(number))
