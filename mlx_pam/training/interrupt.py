"""Ctrl-C, SIGTERM and a closed terminal ask a run to save and leave, not to drop what it does."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType

from mlx_pam import processes

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOTICE = b"\nstopping: this step is finished and saved; once more leaves at once, unsaved\n"


class Interrupt:
    """While entered, the first SIGINT, SIGTERM or SIGHUP only sets `requested`.

    After a SIGINT or SIGTERM the next one acts as usual; SIGHUP never does, since a terminal that
    closes may send it twice. What was ignored before, as SIGHUP is under nohup, stays so. Signals
    reach the main thread only, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
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
        if number != signal.SIGHUP:
            self._restore((signal.SIGINT, signal.SIGTERM))
        if not self.requested and processes.is_main():
            with suppress(OSError):  # the terminal may be gone
                os.write(2, NOTICE)  # unbuffered: this may run in the middle of another write
        self.requested = True

    def _restore(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            if number in self._previous:
                signal.signal(number, self._previous.pop(number))
