"""Each run in a folder is listed with its state, and nothing that lies about there is an error."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from written_log import (
    TIME,
    checkpoint,
    end,
    evaluation,
    start,
    step,
    steps,
    write_log,
)

from mlx_pam.analysis import runs
from mlx_pam.analysis.runs import find_runs, list_runs, summarise
from mlx_pam.training.lock import LOCK, RunLock
from mlx_pam.training.metrics import LOG


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> None:
    """It is an hour after the first record."""
    monkeypatch.setattr(runs.time, "time", lambda: TIME + 3600.0)


def state(run: Path) -> str:
    return summarise(run, "name").state


def holder(**fields) -> str:
    return json.dumps({"process": os.getpid(), "host": platform.node(), "since": ""} | fields)


def past_process() -> int:
    """The id of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_summary_is_what_the_log_tells(tmp_path):
    records = [start(), *steps(1, 60), evaluation(30, 2.0), evaluation(60, 2.5), end(60, "stopped")]
    summary = summarise(write_log(tmp_path / "x", *records), "x")
    assert summary.to_dict() == {
        "name": "x", "path": str(tmp_path / "x"), "state": "stopped", "model": "sam",
        "scale": "10m", "data": "a-text", "parameters": 9_876_543, "step": 60, "steps": 100,
        "tokens": 64 * 60, "validation_perplexity": math.exp(2.5),
        "best_validation_perplexity": math.exp(2.0), "tokens_per_s": 100.0,
        "age": 3600.0 - 2 * 63,
    }  # fmt: skip


def test_speed_is_the_median_of_the_last_steps(tmp_path):
    slow = [step(i, tokens_per_s=1.0) for i in range(1, 51)]
    fast = [step(i, tokens_per_s=float(i)) for i in range(51, 101)]
    fast[-1]["tokens_per_s"] = 1e6
    assert summarise(write_log(tmp_path, start(), *slow, *fast), "").tokens_per_s == 75.5


def test_a_later_session_takes_evaluations_back(tmp_path):
    first = [start(), *steps(1, 6), evaluation(2, 3.0), evaluation(4, 1.0)]
    summary = summarise(write_log(tmp_path, *first, start(3), *steps(4, 5)), "")
    assert summary.validation_perplexity == math.exp(3.0)
    assert summary.best_validation_perplexity == math.exp(3.0)


@pytest.mark.parametrize("status", ["finished", "stopped", "interrupted"])
def test_the_state_is_that_of_the_last_session(tmp_path, status):
    records = [start(), *steps(1, 2), end(2, "stopped"), start(2), *steps(3, 4), end(4, status)]
    assert state(write_log(tmp_path, *records)) == status


def test_a_session_without_an_end_has_crashed_even_after_one_that_has(tmp_path):
    run = write_log(tmp_path, start(), step(1), end(1, "stopped"), start(1), step(2))
    (run / LOCK).write_text(holder(process=past_process()))
    assert state(run) == "crashed"


def test_a_blow_up_is_told_from_a_crash(tmp_path):
    broken = {"event": "diverged", "step": 3, "loss": math.nan, "grad_norm": math.inf}
    assert state(write_log(tmp_path, start(), *steps(1, 2), broken)) == "diverged"


def test_a_run_that_holds_its_lock_is_running(tmp_path):
    run = write_log(tmp_path, start(), step(1), end(1, "stopped"))
    lock = RunLock(run)
    lock.take()
    with lock:
        assert state(run) == "running"
    assert state(run) == "stopped"


@pytest.mark.parametrize("host", [platform.node(), "another"])
def test_a_lock_that_nobody_holds_any_longer_is_that_of_a_crash(tmp_path, host):
    run = write_log(tmp_path, start(), step(1))
    (run / LOCK).write_text(holder(host=host))  # a process of that number is there, without it
    assert state(run) == "crashed"


def test_asking_for_the_state_of_a_run_that_died_leaves_its_lock_alone(tmp_path, monkeypatch):
    run = write_log(tmp_path, start(), step(1))
    (run / LOCK).write_text(holder(process=past_process()))
    monkeypatch.setattr(runs.fcntl, "flock", lambda *_: pytest.fail("the lock was asked for"))
    assert state(run) == "crashed"


def test_a_lock_that_cannot_be_asked_leaves_it_to_the_log(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "not implemented")

    run = write_log(tmp_path, start(), step(1))
    (run / LOCK).write_text(holder())
    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert state(run) == "crashed"
    monkeypatch.setattr(runs.time, "time", lambda: TIME + 60.0)
    assert state(run) == "running"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([start(steps=2), *steps(1, 2), checkpoint(2)], "finished"),
        ([start(steps=9), *steps(1, 2), checkpoint(2)], "stopped"),
        ([start(steps=9), *steps(1, 3), checkpoint(2)], "crashed"),
    ],
)
def test_logs_from_before_locks_and_ends_are_judged_by_their_checkpoints(
    tmp_path, records, expected
):
    assert state(write_log(tmp_path, *records)) == expected


RUBBISH = {
    "empty": b"",
    "binary": bytes(range(256)),
    "other.jsonl": b'{"loss": 1}\n[]\n3\n',
    "strange": b'{"event": "start", "step": "x", "config": 3, "plan": [], "time": "nan"}\n'
    b'{"event": "evaluation", "perplexity": {}}\n{"event": "end", "status": 7}\n'
    b'{"event": "step", "step": null, "tokens_per_s": "fast", "time": "inf"}\n',
    "cut": b'{"event": "start", "step": 0, "conf',
}


@pytest.mark.parametrize("content", RUBBISH.values(), ids=RUBBISH.keys())
@pytest.mark.parametrize("lock", [None, b"", b"{", b"[]", b'{"host": 1, "process": "x"}'])
def test_a_damaged_or_foreign_folder_is_listed_and_no_error(tmp_path, content, lock):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / LOG).write_bytes(content)
    if lock is not None:
        (tmp_path / "x" / LOCK).write_bytes(lock)
    (summary,) = list_runs(tmp_path)
    assert (summary.name, summary.step, summary.parameters) == ("x", None, None)
    assert summary.validation_perplexity is None


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    run = write_log(tmp_path / "x", start())
    (run / LOG).unlink()
    (run / LOG).symlink_to(tmp_path / "nothing")
    assert [(found.name, found.state) for found in list_runs(tmp_path)] == [("x", "unreadable")]


def test_runs_are_found_at_any_depth_but_not_inside_of_a_run(tmp_path):
    for name in ("a", "sweep/b", "sweep/c/old-1", "sweep/c", ".hidden/d"):
        write_log(tmp_path / name, start())
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    names = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert names == ["a", "sweep/b", "sweep/c"]
    assert [run.name for run in list_runs(tmp_path / "sweep" / "c")] == ["c"]
    assert list_runs(tmp_path / "nothing here") == []


def test_the_run_that_wrote_last_comes_first(tmp_path):
    write_log(tmp_path / "a", start(), step(1))
    write_log(tmp_path / "b", start(), step(1), step(2))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / LOG).touch()
    os.utime(tmp_path / "c" / LOG, (TIME + 3, TIME + 3))
    assert [run.name for run in list_runs(tmp_path)] == ["b", "c", "a"]
