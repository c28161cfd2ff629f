"""Variants in processes of their own take turns, A B C A B C, and share what befalls the machine.

The processes start and warm up one after the other; between its turns each sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Failed(Exception):
    """The reason why a variant has no result."""


@dataclass(frozen=True)
class Job:
    """What one variant asks of its process; jobs of equal workload and environment share it."""

    workload: str
    settings: Mapping[str, Any]
    turn: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    expects: str = ""
    """Must be in the workload's description, or the variant is not what it is called."""

    @property
    def process(self) -> str:
        return json.dumps([self.workload, dict(self.settings), dict(self.environment)])


@dataclass
class Outcome:
    """What became of a variant: a rate per round, or the reason why there is none."""

    rates: list[float] = field(default_factory=list)
    unit: str = ""
    description: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0
    skipped: str = ""


class Worker:
    """The parent's end of a process that runs one workload."""

    def __init__(self, job: Job, threads: int, log: int | None = subprocess.DEVNULL) -> None:
        environment = {name: str(threads) for name in THREAD_VARIABLES}
        self._process = subprocess.Popen(
            [sys.executable, WORKER, json.dumps([job.workload, dict(job.settings)])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8",
            env=os.environ | environment | job.environment,
        )  # fmt: skip
        self.greeting: dict[str, Any] = {}
        try:
            self.greeting = self._answer()
        except Failed:
            self.close()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, its answer; `Failed` when the process has none."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise Failed(_end(self._process.wait()))
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"].splitlines()[0])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def run_rounds(
    jobs: Mapping[str, Job], *, rounds: int, threads: int, seconds: float,
    tell: Callable[[str], None], log: int | None = subprocess.DEVNULL,
) -> dict[str, Outcome]:  # fmt: skip
    """Every variant's outcome after so many rounds, each turn of about so many seconds.

    log: where the processes' stderr goes; None: to this one's.
    """
    outcomes = {name: Outcome() for name in jobs}
    workers: dict[str, Worker] = {}

    def attempt(name: str, action: Callable[[Job], None]) -> None:
        if outcomes[name].skipped:
            return
        try:
            action(jobs[name])
        except Failed as reason:
            outcomes[name].skipped = str(reason)

    def warm_up(job: Job) -> None:
        if job.process not in workers:
            workers[job.process] = Worker(job, threads, log)
        worker, outcome = workers[job.process], outcomes[name]
        outcome.unit, outcome.description = worker.greeting["unit"], worker.greeting["description"]
        if job.expects not in outcome.description:
            raise Failed(f"needs {job.expects}, and this is {outcome.description}")
        worker.ask(turn=job.turn, seconds=seconds)

    def take_turn(job: Job) -> None:
        answer = workers[job.process].ask(turn=job.turn)
        outcome = outcomes[name]
        outcome.rates.append(answer["rate"])
        outcome.facts = answer["facts"]
        outcome.peak_bytes = max(outcome.peak_bytes, answer["peak_bytes"])

    try:
        for name in jobs:
            tell(f"warming up {name}")
            attempt(name, warm_up)
        for turn in range(rounds):
            for name in jobs:
                tell(f"round {turn + 1} of {rounds}: {name}")
                attempt(name, take_turn)
    finally:
        for worker in workers.values():
            worker.close()
    return outcomes


def _end(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + (", for memory?" if name == "SIGKILL" else "")
    return f"its process ended with code {code}"
