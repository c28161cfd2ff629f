"""Ctrl-C and SIGTERM ask a run to save and leave, rather than to drop what it is doing."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

from mlx_pam import processes

NOTICE = b"\nstopping: this step is finished and saved; once more leaves at once, unsaved\n"


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets `requested`; a second one acts as usual.

    Signals reach the main thread only, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()
        if processes.is_main():  # no buffered stream: this may run in the middle of another write
            os.write(2, NOTICE)

    def _restore(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)
