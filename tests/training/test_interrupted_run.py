"""A run that is asked to leave finishes its step, saves, and goes on later as if never asked."""

from __future__ import annotations

import os
import signal

import pytest
from small_run import assert_same_run, run

from mlx_pam.training import session
from mlx_pam.training.interrupt import SIGNALS
from mlx_pam.training.trainer import Trainer


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_finishes_the_step_saves_and_tells_how_to_go_on(
    corpus, tmp_path, monkeypatch, capsys, number
):
    step = Trainer.train_step

    def interrupted_step(self):
        if self.step == 2:
            os.kill(os.getpid(), number)
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", interrupted_step)
    before = signal.getsignal(number)
    result = run(corpus, tmp_path, eval_every=1)
    assert signal.getsignal(number) is before
    assert (result.status, result.step) == ("interrupted", 3)
    assert result.checkpoint == tmp_path / "step-00000003"
    assert "go on with: mlx_pam.train(config, model_config), with resume=True" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("moment", ["train_step", "split_loss", "draw_sample"])
@pytest.mark.parametrize("step", [4, 8])
def test_what_an_interrupt_left_out_is_made_up_for(corpus, tmp_path, monkeypatch, moment, step):
    """In the middle of a run and at its end: evaluations, samples and the best are the same."""
    settings = {
        "steps": 8, "eval_every": 4, "sample_every": 4, "save_every": 3, "sample_tokens": 4,
    }  # fmt: skip
    run(corpus, tmp_path / "a", **settings)
    owner = Trainer if moment == "train_step" else session
    work, calls = getattr(owner, moment), []

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) == (step if moment == "train_step" else step // 4):
            os.kill(os.getpid(), signal.SIGINT)
        return work(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, interrupted)
        assert run(corpus, tmp_path / "b", **settings).step == step
    for _ in range(2):  # once is enough
        result = run(corpus, tmp_path / "b", resume=True, **settings)
        assert result.status == "finished"
    assert_same_run(tmp_path / "a", tmp_path / "b")
