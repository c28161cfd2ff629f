"""Runs in processes of their own, so many at once: begun, watched, and asked to leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlx_pam.data.tokenise import cores
from mlx_pam.training.interrupt import Interrupt
from mlx_pam.training.lock import is_held
from mlx_pam.training.sweep.run import Run

COMMAND = (sys.executable, "-m", "mlx_pam")
POLL = 0.2
"""Seconds between two looks at the processes."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
EXIT_INTERRUPT = 130


class Show(Protocol):
    """What tells the user how a sweep goes."""

    def say(self, text: str) -> None: ...

    def begun(self, run: Run) -> None: ...

    def ended(self, run: Run) -> None: ...

    def renew(self, queue: Sequence[Run]) -> None:
        """Show all that the sweep has to do and has done; called a few times a second."""


class _Quiet(Show):
    """Tells nothing."""


QUIET = _Quiet()


@dataclass
class Child:
    """The process of a run."""

    run: Run
    process: subprocess.Popen[bytes] | None
    """None for what an earlier sweep that was killed has left at work: it is waited for."""
    start: int = 0
    """Where in the run's output its own begins."""
    asked: bool = False
    """Whether it was asked to leave."""


class Children:
    """The processes of a sweep; `interrupt.requested` begins no more and asks them to leave."""

    def __init__(self, jobs: int, interrupt: Interrupt, show: Show) -> None:
        self.jobs = jobs
        self.interrupt = interrupt
        self.show = show
        self._children: list[Child] = []

    def work(self, runs: Sequence[Run], queue: Sequence[Run]) -> None:
        """Bring those of the runs that wait to their ends, or as far as they come; show all."""
        waiting = deque(run for run in runs if run.state == "waiting")
        try:
            while waiting or self._children:
                if self.interrupt.requested:
                    waiting.clear()
                    self._ask_to_leave()
                while waiting and len(self._children) < self.jobs:
                    self._begin(waiting.popleft())
                self._look()
                self.show.renew(queue)
                time.sleep(POLL)
        except Exception:  # no fault of theirs: they save and leave
            self._ask_to_leave()
            for child in self._children:
                child.process.wait()
            raise
        finally:  # a second Ctrl-C: they leave at once
            for child in self._children:
                if child.process:
                    child.process.kill()

    def _begin(self, run: Run) -> None:
        try:
            child = Child(run, None) if is_held(run.folder) else self._start(run)
        except OSError as error:
            run.fail(error)
            self.show.ended(run)
            return
        self._children.append(child)
        if child.process is None:
            self.show.say(f"waiting   {run.name}: another process is at work in it")
            return
        run.state = "running"
        self.show.begun(run)

    def _start(self, run: Run) -> Child:
        run.folder.mkdir(parents=True, exist_ok=True)
        with run.output.open("ab") as output:
            start = output.tell()
            process = subprocess.Popen(
                [*COMMAND, *run.words()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C reaches it through this process, and once
            )
        return Child(run, process, start)

    def _environment(self) -> dict[str, str]:
        """Each of several processes gets its share of the cores, where the user says nothing."""
        if self.jobs == 1:
            return dict(os.environ)
        share = str(max(1, cores() // self.jobs))
        return dict.fromkeys(THREADS, share) | os.environ

    def _look(self) -> None:
        for child in list(self._children):
            run, process = child.run, child.process
            if process is None:
                if not is_held(run.folder):
                    self._children.remove(child)
                    run.catch_up()
                    if run.state == "waiting":
                        self._begin(run)
                continue
            code = process.poll()
            try:
                run.look()  # where the process has ended, the log is whole by now
                if code is not None:
                    self._settle(child, code)
            except OSError as error:
                if code is None:
                    continue  # it is at work, and looked at again
                run.fail(error)
            if code is not None:
                self._children.remove(child)
                self.show.ended(run)

    def _settle(self, child: Child, code: int) -> None:
        run = child.run
        if run.finished:
            run.state = "finished"
        elif self.interrupt.requested and code in (0, EXIT_INTERRUPT, -signal.SIGTERM):
            run.state = "interrupted"
        else:
            run.state, run.error = "failed", _last_error(run.output, child.start, code)

    def _ask_to_leave(self) -> None:
        for child in list(self._children):
            if child.process is None:
                self._children.remove(child)
            elif not child.asked:
                child.asked = True
                child.process.terminate()  # SIGINT may be ignored, as it is in the background


def _last_error(output: Path, start: int, code: int) -> str:
    """The last line of what a process has printed that says error, or its very last one."""
    if code < 0:
        return f"it was ended by signal {-code}"
    with output.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"it ended with exit code {code}"])[-1]
