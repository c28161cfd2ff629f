"""Many made-up inputs at one door of the package: each is taken or refused, cleanly and soon.

An input is a function of its target and its number, so every run of a test tries the same ones.
`MLX_PAM_FUZZ=NUMBER` tries that one alone, `MLX_PAM_FUZZ=FIRST+COUNT` so many from there.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlx_pam.cli import main
from mlx_pam.errors import MlxPamError

REPLAY = "MLX_PAM_FUZZ"
CPU_SECONDS, SECONDS = 20.0, 300.0  # the latter for what waits, on a machine that may be busy
ROOM = 4 << 30  # bytes of address space beside what is there
DISTINCT = 8  # failures that are told

Random = random.Random


class TooSlow(BaseException):
    """An input took longer than any may; no `except Exception` stops it."""


def inputs(few: int, many: int) -> pytest.MarkDecorator:
    """A test's parameter `count`: few inputs, and many in the slow run."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def attack(target: str, count: int, one: Callable[[Random], None]) -> None:
    """Call `one` with the random generator of each input; what it raises fails the test.

    Failures at one place of the code are told once, with the number that repeats the first.
    """
    first, count = _chosen(count)
    failures: dict[object, str] = {}
    with limited_memory():
        for number in range(first, first + count):
            try:
                with limited_time():
                    one(Random(f"{target} {number}"))
            except (Exception, TooSlow) as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                told = "".join(traceback.format_exception(error, limit=-6))
                head = f"input {number} of {target}; to repeat it: {REPLAY}={number}\n"
                failures.setdefault((type(error), last.filename, last.lineno), head + told)
                if len(failures) == DISTINCT:
                    break
    print(f"{target}: inputs {first} to {number}; to repeat them: {REPLAY}={first}+{count}")
    if failures:
        pytest.fail("\n\n".join(failures.values()), pytrace=False)


def refused(call: Callable[[], object]) -> bool:
    """Whether a call refuses its input, by an error that names something and is one of ours."""
    try:
        call()
    except MlxPamError as error:
        if not str(error).strip():
            raise AssertionError("an error without a text") from error
        return True
    return False


def command(*words: str, stdin: bytes = b"") -> int:
    """Run `mlx_pam WORDS...` in this process; returns its exit code, 0, 1 or 2.

    Its streams encode as those of a shell do. A code that is not 0 comes with an error in words.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    err.reconfigure(errors="backslashreplace")
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main(words)
        out.flush()
        err.flush()
    printed = (out.buffer.getvalue() + err.buffer.getvalue()).decode()
    assert "Traceback" not in printed, printed
    assert code in (0, 1, 2), f"exit code {code} of {words}"
    lines = err.buffer.getvalue().decode().splitlines()
    assert code == 0 or any(line.startswith("error: ") for line in lines), (code, words, printed)
    return code


def write(path: Path, raw: bytes) -> None:
    """Write a file that may be a link to another, or not there."""
    path.unlink(missing_ok=True)
    path.write_bytes(raw)


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Raise `TooSlow` inside after so many seconds: of work, or of waiting for anything."""

    def stop(signum: int, _: object) -> None:
        raise TooSlow(f"more than {CPU_SECONDS:g} s of work or {SECONDS:g} s ({signum})")

    timers = {
        (signal.ITIMER_PROF, signal.SIGPROF): CPU_SECONDS,
        (signal.ITIMER_REAL, signal.SIGALRM): SECONDS,
    }
    before = {number: signal.signal(number, stop) for _, number in timers}
    for (timer, _), seconds in timers.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, number in timers:
            signal.setitimer(timer, 0.0)
            signal.signal(number, before[number])


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let what would take gigabytes fail at once, where the system can be asked to (Linux)."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    most = used + ROOM
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _chosen(count: int) -> tuple[int, int]:
    """First number and how many, as the environment or else the test has it."""
    wanted = os.environ.get(REPLAY)
    if not wanted:
        return 0, count
    first, _, many = wanted.partition("+")
    return int(first), int(many or 1)
