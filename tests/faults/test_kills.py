"""Killed at any moment, a run goes on from a whole checkpoint and ends as if nothing had been."""

from __future__ import annotations

import random
import time
from pathlib import Path

import life
import pytest
from tally import Tally

from mlx_pam.training.metrics import LOG


@pytest.mark.parametrize(
    "undisturbed", ["mlx", pytest.param("torch", marks=life.TORCH)], indirect=True
)
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])  # in each backend
def test_kill_9_at_random_moments(undisturbed, tmp_path, tally, kills):
    moments = life.random_moments(f"{kills} kills, {undisturbed.backend}")
    runs = 0
    while tally.places.total() < kills:
        run = life.Run(tmp_path / f"run-{runs}", undisturbed.corpus, undisturbed.backend)
        while tally.places.total() < kills and kill(run, moments, tally):
            pass
        if not run.finished():
            assert run.begin().wait() == 0, run.said()
        run.require_same(undisturbed)
        runs += 1
    print(f"{tally.places.total()} kills in {runs} runs")
    tally.write("`kill -9`", undisturbed.backend)


def kill(run: life.Run, moments: random.Random, tally: Tally) -> bool:
    """Start the run or go on with it, and kill it; False if it came to its end before."""
    sessions = run.sessions()
    process = run.begin()
    if moments.random() < 0.9:
        run.begun(process, sessions + 1)
        run.reached(process, moments.randrange(life.STEPS // 2))
        time.sleep(moments.uniform(0, 0.05))  # anywhere in a step
    else:
        time.sleep(moments.uniform(0, 2))  # mostly before it trains
    process.kill()
    code = process.wait()
    if code == 0:
        return False
    assert code == -9, run.said()
    tally.add(where(run.out), run.step() - run.require_whole())
    return True


def where(out: Path) -> str:
    """What the run was doing, by what it left."""
    hidden = [path.name for path in out.glob(".*.saving")] if out.exists() else []
    if ".step-00000000.saving" in hidden:
        return "while an old checkpoint was removed"
    if ".best.json.saving" in hidden:
        return "while the best checkpoint was recorded"
    if hidden:
        return "while a checkpoint was written"
    if not (out / LOG).exists():
        return "before the first step"
    if (out / LOG).read_bytes()[-1:] not in (b"\n", b""):
        return "while the log was written"
    return "elsewhere"
