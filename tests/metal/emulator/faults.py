"""Which layer finds each planted fault: `python -m tests.metal.emulator.faults` prints a table."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .build import SANITIZERS
from .check import check
from .environment import NOT_OURS, sanitizer_environment
from .planted import FAULTS, KERNELS, Fault
from .run import EmulationError, emulated, generated_sources

ROOT = Path(__file__).parents[3]
MARK = "planted: "  # before what a sanitizer says of a fault
REPORT = re.compile(r"ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error:")
NOT_RUN = {"compile", "launch"}


def found_by_check(fault: Fault) -> str | None:
    """The first rule that its source breaks."""
    (source,) = generated_sources(fault.run)
    return next((finding.rule for finding in check(source)), None)


def found_by_launch(fault: Fault, schedule: str = "forward") -> str | None:
    """The layer of a launch that finds it, with `check` left out."""
    try:
        with emulated(schedule, checked=False):
            y = fault.run()
    except EmulationError as error:
        return error.layer
    return None if KERNELS[fault.kernel].is_right(y) else "values"


def found_by_sanitizer(sanitize: str) -> dict[str, bool]:
    """Of each fault that runs, and of each kernel without one: whether there is a report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.metal.emulator.faults", sanitize],
        env={
            **sanitizer_environment(sanitize),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0",
            "UBSAN_OPTIONS": "halt_on_error=0",
            "TSAN_OPTIONS": f"exitcode=0:{NOT_OURS}",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    reports = [part.partition("\n") for part in done.stderr.split(MARK)[1:]]
    return {name: bool(REPORT.search(report)) for name, _, report in reports}


def _run_all(sanitize: str) -> None:
    """What the process under a sanitizer does."""
    runs = {name: kernel.run for name, kernel in KERNELS.items()}
    runs |= {fault.name: fault.run for fault in FAULTS if fault.launch not in NOT_RUN}
    for name, run in runs.items():
        print(f"{MARK}{name}", file=sys.stderr, flush=True)
        try:
            with emulated("random", sanitize, checked=False):
                run()
        except EmulationError:  # the launch's own layers work here too
            continue


def table() -> Iterator[str]:
    """The rows of a table in Markdown."""
    reports = [found_by_sanitizer(sanitize) for sanitize in SANITIZERS]
    yield "| planted | check | launch | ASan, UBSan | TSan |"
    yield "| --- | --- | --- | --- | --- |"
    for fault in FAULTS:
        found = (report.get(fault.name, False) for report in reports)
        yield row(fault.name, found_by_check(fault), found_by_launch(fault), *found)


def row(name: str, check: str | None, launch: str | None, address: bool, thread: bool) -> str:
    """One of them."""
    cells = (check, launch, address and "yes", thread and "yes")
    return f"| {name} | " + " | ".join(cell or "" for cell in cells) + " |"


if __name__ == "__main__":
    if sys.argv[1:]:
        _run_all(sys.argv[1])
    else:
        print(*table(), sep="\n")
