"""A run that is asked to leave, stopped for a while, or left by its terminal, loses no step."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time

import life
import pytest
from tally import Tally

often = pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])


def in_the_middle(run: life.Run, moments) -> subprocess.Popen[bytes]:
    """The run in a process that has begun to train, after a random number of steps."""
    sessions = run.sessions()
    process = run.begin(start_new_session=True)
    run.begun(process, sessions + 1)
    run.reached(process, moments.randrange(1, life.STEPS // 2))
    return process


def leaving(undisturbed, tmp_path, times: int, name: str, leave) -> Tally:
    """Let `leave(process)` end a run at random moments; it goes on and ends the same."""
    tally, moments, runs = Tally(), life.random_moments(name), 0
    while tally.places.total() < times:
        run = life.Run(tmp_path / f"run-{runs}", undisturbed.corpus, undisturbed.backend)
        while tally.places.total() < times:
            process = in_the_middle(run, moments)
            leave(process)
            if process.wait() == 0:  # it had come to its end before
                break
            tally.add("left", run.step() - run.require_whole())
        if not run.finished():
            assert run.begin().wait() == 0, run.said()
        run.require_same(undisturbed)
        runs += 1
    tally.write(name, undisturbed.backend)
    return tally


@often
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_saves_and_leaves(undisturbed, tmp_path, number, times):
    def leave(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(number)
        assert process.wait() in (0, 130)

    tally = leaving(undisturbed, tmp_path, times, number.name, leave)
    assert tally.repeated == 0
    assert "stopping: this step is finished and saved" in (tmp_path / "run-0.txt").read_text()


@often
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_at_once(undisturbed, tmp_path, number, times):
    def leave(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(number)
        time.sleep(0.02)
        process.send_signal(number)
        # by the signal itself where Python's own handler is not there, or gone at its end
        assert process.wait() in (0, 130, -number)

    leaving(undisturbed, tmp_path, times, f"{number.name} twice", leave)
    for said in tmp_path.glob("run-*.txt"):
        assert "Traceback" not in said.read_text()


@often
def test_a_run_that_is_stopped_and_continued_is_not_changed(undisturbed, folder, tally, times):
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend)
    process = run.begin()
    run.begun(process, 1)
    while tally.places.total() < times and process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        run.require_whole()
        process.send_signal(signal.SIGCONT)
        run.reached(process, 1)
        tally.add("went on")
    assert process.wait() == 0, run.said()
    run.require_same(undisturbed)
    tally.write("SIGSTOP and SIGCONT", undisturbed.backend)


@pytest.mark.parametrize("fault", ["terminal closed", "terminal closed, disowned"])
def test_a_terminal_that_is_closed_loses_nothing(undisturbed, folder, tally, fault):
    """Its own child is told and saves; a run that was disowned goes on without it."""
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend)
    ours, terminal = pty.openpty()
    way = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    if fault == "terminal closed":
        way["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    with run.held():
        process = run.begin(**way, start_new_session=True)
        os.close(terminal)
        run.reached(process, 1)
        os.read(ours, 1 << 16)
        os.close(ours)
    assert process.wait() == (130 if fault == "terminal closed" else 0)
    assert run.require_whole() == run.step() > 0  # saved, though nobody could be told
    tally.add("left" if fault == "terminal closed" else "went on")
    if not run.finished():
        assert run.begin().wait() == 0, run.said()
    run.require_same(undisturbed)
    tally.write(fault, undisturbed.backend)


def test_a_reader_of_the_output_that_goes_ends_no_run(undisturbed, folder, tally):
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend)
    process = run.begin(stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 0
    tally.add("went on")
    run.require_same(undisturbed)
    tally.write("reader of the output gone", undisturbed.backend)
