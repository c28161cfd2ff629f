"""H07: a run that stops in the middle of an epoch and resumes is the run that never stopped."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from new_process import python
from small_run import assert_same_run, run

from mlx_pam import checkpoint
from mlx_pam.training.metrics import read_log

SCRIPT = """
import os, signal, sys
from small_command import main
from mlx_pam.training.trainer import Trainer

step = Trainer.train_step

def interrupted(self):
    if self.step == 6 and "--resume" not in sys.argv:
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C
    return step(self)

Trainer.train_step = interrupted
sys.exit(main())
"""


@pytest.fixture
def unbroken(backend, corpus, tmp_path) -> Path:
    """The run folder of 20 steps without a stop."""
    out = tmp_path / "unbroken"
    run(corpus, out, eval_every=8, backend=backend.name)
    return out


def test_stopped_at_10_and_resumed_to_20_equals_20_without_a_stop(
    backend, corpus, tmp_path, unbroken
):
    out = tmp_path / "broken"
    stopped = run(corpus, out, eval_every=8, stop_after=10, backend=backend.name)
    assert (stopped.status, stopped.step) == ("stopped", 10)
    resumed = run(corpus, out, eval_every=8, resume=True, backend=backend.name)
    assert (resumed.status, resumed.step, resumed.tokens) == ("finished", 20, 20 * 16)
    assert_same_run(unbroken, out)


def test_with_deterministic_it_is_so_on_the_default_device_too(backend, corpus, tmp_path):
    settings = {"steps": 6, "eval_every": 3, "backend": backend.name, "deterministic": True}
    run(corpus, tmp_path / "unbroken", **settings)
    run(corpus, tmp_path / "broken", stop_after=3, **settings)
    run(corpus, tmp_path / "broken", resume=True, **settings)
    assert_same_run(tmp_path / "unbroken", tmp_path / "broken")


def test_elapsed_time_continues(backend, corpus, tmp_path):
    out = tmp_path / "broken"
    stopped = run(corpus, out, steps=6, stop_after=3, backend=backend.name)
    resumed = run(corpus, out, steps=6, resume=True, backend=backend.name)
    elapsed = [record["elapsed"] for record in read_log(out, "step")]
    assert elapsed == sorted(elapsed)
    assert elapsed[3] > elapsed[2] == stopped.elapsed
    assert resumed.elapsed == elapsed[-1]


def test_a_crash_after_the_last_checkpoint_loses_only_the_steps_since(
    backend, corpus, tmp_path, unbroken
):
    out = tmp_path / "broken"
    run(corpus, out, eval_every=8, stop_after=10, save_every=5, backend=backend.name)
    for name in (checkpoint.COMPLETE, checkpoint.OPTIMIZER):  # as if the save of step 10 was cut
        (out / "step-00000010" / name).unlink()
    run(corpus, out, eval_every=8, resume=True, backend=backend.name)
    assert_same_run(unbroken, out)


def test_ctrl_c_saves_and_its_advice_ends_the_run_as_if_it_never_came(
    backend, corpus, tmp_path, unbroken
):
    out = tmp_path / "broken"
    words = (
        f"train --data {corpus} --out {out} --steps 20 --seq-len 8 --batch-size 2 --lr 1e-2 "
        f"--eval-every 8 --save-every 0 --sample-every 0 --seed 1 --backend {backend.name}"
    )
    first = python("-c", SCRIPT, *words.split())
    assert first.returncode == 130, first.stderr
    assert "interrupted at step 7 of 20" in first.stdout
    advice = shlex.split(first.stdout.split("go on with: mlx_pam ")[1])
    again = python("-c", SCRIPT, *advice)
    assert again.returncode == 0, again.stderr
    assert "step 7, 112 tokens" in again.stdout
    assert_same_run(unbroken, out)
