"""Two runs never work in one folder, and who reads a run at work gets a whole checkpoint."""

from __future__ import annotations

import json
import os
import signal
import time

import life
from new_process import python
from small_command import __file__ as command

from mlx_pam import checkpoint


def test_a_second_run_is_told_of_the_first_which_goes_on(undisturbed, folder, tally):
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend)
    with run.held():
        first = run.begin()
        run.reached(first, 1)
        for more in ((), ("--resume",), ("--overwrite",)):
            second = python(command, *run.words, *more)
            assert second.returncode == 1
            assert second.stdout == ""
            assert f"no other run is at work in, got {folder}, where process {first.pid} on" in (
                second.stderr
            )
            assert second.stderr.count("\n") == 1
            tally.add("refused")
    assert first.wait() == 0
    run.require_same(undisturbed)
    tally.write("second run in the folder", undisturbed.backend)


def test_what_a_killed_run_leaves_of_its_lock_is_no_obstacle(undisturbed, folder, tally):
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend)
    with run.held():
        first = run.begin()
        run.reached(first, 1)
        first.kill()
        first.wait()
    record = json.loads((folder / ".lock").read_bytes())
    assert record["process"] == first.pid
    (folder / ".lock").write_text(json.dumps(record | {"process": os.getpid()}))  # who lives
    assert run.begin().wait() == 0, run.said()
    run.require_same(undisturbed)
    tally.add("gone on with", repeated=None)
    tally.write("lock left by a killed run", undisturbed.backend)


def test_readers_of_a_run_at_work_always_find_a_whole_checkpoint(undisturbed, folder, tally):
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend, steps=10**6)
    process = run.begin("--keep", "1")
    while not checkpoint.find(folder) and process.poll() is None:
        time.sleep(0.01)
    steps = []
    while len(set(steps)) < 8 and process.poll() is None:
        steps.append(checkpoint.load(folder, optimizer=True).training["step"])
        if checkpoint.best(folder):
            checkpoint.load(folder / "best")
            tally.add("the best")
        tally.add("the newest")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, run.said()
    assert steps == sorted(steps)
    tally.write("read while it saves and removes", undisturbed.backend)


def test_the_command_reads_a_run_at_work(undisturbed, folder):
    run = life.Run(folder, undisturbed.corpus, undisturbed.backend)
    process = run.begin("--keep", "1")
    while not checkpoint.find(folder) and process.poll() is None:
        time.sleep(0.01)
    words = ["generate", "--prompt", "the", "--max-tokens", "2", "--backend", undisturbed.backend]
    done = python(command, *words, "--checkpoint", folder)
    assert done.returncode == 0, done.stderr
    assert process.wait() == 0, run.said()
