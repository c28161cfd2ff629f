"""Turns of variants in processes of their own: order, shared processes, failures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mlx_pam.benchmarks import rounds
from mlx_pam.benchmarks.rounds import Job, Outcome

# Answers as `worker.py` does, and writes down what it is asked; a workload named `die` ends in its
# second turn, one named `refuse` does not start, one named `stumble` fails in each turn.
FAKE_WORKER = """
import json, sys
name, settings = json.loads(sys.argv[1])
def note(*words):
    with open(settings["notes"], "a") as file:
        print(*words, file=file)
def answer(**record):
    print(json.dumps(record), flush=True)
note("start", name)
if name == "refuse":
    answer(error="no such library\\nand more")
    sys.exit()
answer(unit="tokens/s", description=f"fake {name}")
turns = 0
for line in sys.stdin:
    request = json.loads(line)
    warm = "seconds" in request
    note("warm" if warm else "turn", name, request["turn"].get("context", ""))
    turns += not warm
    if name == "die" and turns == 2:
        sys.exit(3)
    if name == "stumble" and not warm:
        answer(error="stumbled")
    else:
        answer(rate=10.0 * turns, facts={}, peak_bytes=100 - turns)
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file where the fake workers write down what they are asked."""
    script = tmp_path / "worker.py"
    script.write_text(FAKE_WORKER, encoding="utf-8")
    monkeypatch.setattr(rounds, "WORKER", script)
    return tmp_path / "notes"


def run(notes: Path, jobs: dict[str, Job], count: int = 2) -> dict[str, Outcome]:
    return rounds.run_rounds(
        jobs, rounds=count, threads=1, seconds=0.1, tell=lambda _: None, log=subprocess.DEVNULL
    )


def job(workload: str, notes: Path, **more) -> Job:
    return Job(workload, {"notes": str(notes)}, **more)


def read(notes: Path) -> list[str]:
    return [line.strip() for line in notes.read_text().splitlines()]


def test_all_warm_up_and_then_take_turns(notes: Path) -> None:
    outcomes = run(notes, {"A": job("a", notes), "B": job("b", notes)})
    warm_up = ["start a", "warm a", "start b", "warm b"]
    assert read(notes) == [*warm_up, "turn a", "turn b", "turn a", "turn b"]
    assert outcomes["A"].rates == outcomes["B"].rates == [10.0, 20.0]
    assert outcomes["A"].peak_bytes == 99


def test_variants_of_one_workload_share_its_process(notes: Path) -> None:
    jobs = {str(c): job("a", notes, turn={"context": c}) for c in (0, 8)}
    run(notes, jobs, count=1)
    assert read(notes) == ["start a", "warm a 0", "warm a 8", "turn a 0", "turn a 8"]


def test_another_environment_is_another_process(notes: Path) -> None:
    jobs = {blas: job("a", notes, environment={"BLAS": blas}) for blas in ("none", "")}
    run(notes, jobs, count=1)
    assert read(notes).count("start a") == 2


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("refuse", "no such library"),
        ("die", "its process ended with code 3"),
        ("stumble", "stumbled"),
    ],
)
def test_a_failure_is_a_reason_and_the_others_go_on(
    notes: Path, workload: str, reason: str
) -> None:
    outcomes = run(notes, {"bad": job(workload, notes), "good": job("a", notes)})
    assert outcomes["bad"].skipped == reason
    assert outcomes["good"].rates == [10.0, 20.0]


def test_what_is_not_what_it_is_called_is_not_measured(notes: Path) -> None:
    outcomes = run(notes, {"A": job("a", notes, expects="OpenBLAS")})
    assert outcomes["A"].skipped == "needs OpenBLAS, and this is fake a"
    assert outcomes["A"].rates == []


def test_a_process_that_the_system_ends_says_by_which_signal() -> None:
    assert rounds._end(-9) == "its process was ended by SIGKILL, for memory?"
