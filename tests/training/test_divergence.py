"""Losses and gradients that are not finite stop a run or are left out, and reach no weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_run import assert_same_run, curve, run

from mlx_pam import checkpoint
from mlx_pam.errors import CheckpointError, RunError
from mlx_pam.training.metrics import read_log
from mlx_pam.training.trainer import Diverged, Trainer


@pytest.fixture
def blow_up(monkeypatch):
    """`blow_up(steps, of)`: in these steps the loss, or the gradient, of later runs is not finite.

    Returns the learner of each run, in a list that grows.
    """

    def begin(steps: Iterable[int], of: str = "loss") -> list:
        build, learners = Trainer.__init__, []

        def sabotaged(self, *args):
            build(self, *args)
            learner = self.learner
            gradient, norm = learner.gradient, learner.gradient_norm

            def bad(value: float, instead: float) -> float:
                return instead if self.step + 1 in steps else value

            if of == "loss":
                learner.gradient = lambda *given: bad(gradient(*given), math.nan)
            else:
                learner.gradient_norm = lambda: bad(norm(), math.inf)
            learners.append(learner)

        monkeypatch.setattr(Trainer, "__init__", sabotaged)
        return learners

    return begin


@pytest.mark.parametrize("of", ["loss", "gradient"])
def test_a_blow_up_stops_the_run_before_it_reaches_the_weights(
    backend, corpus, tmp_path, blow_up, of
):
    run(corpus, tmp_path / "good", stop_after=5, backend=backend.name)
    learners = blow_up([6], of)
    with pytest.raises(Diverged) as error:
        run(corpus, tmp_path / "bad", save_every=2, backend=backend.name)
    text = str(error.value)
    assert "diverged at step 6" in text
    assert ("got loss nan" if of == "loss" else "and gradient norm inf") in text
    assert f"the last good checkpoint is {tmp_path / 'bad' / 'step-00000004'}" in text
    assert all(remedy in text for remedy in ("--resume", "lower --lr", "--on-nonfinite skip"))
    (record,) = read_log(tmp_path / "bad", "diverged")
    assert record["step"] == 6
    assert f"{record['lr']:.3g}" in text
    for name, array in checkpoint.load(tmp_path / "good").weights.items():
        np.testing.assert_array_equal(learners[-1].weights()[name], array, err_msg=name)


def test_a_blow_up_before_the_first_checkpoint_says_how_to_begin_again(corpus, tmp_path, blow_up):
    blow_up([1])
    with pytest.raises(Diverged, match="no checkpoint was saved yet: begin again with --overwrite"):
        run(corpus, tmp_path)


@pytest.mark.parametrize("of", ["loss", "gradient"])
def test_a_step_is_skipped_when_that_is_asked_for(backend, corpus, tmp_path, blow_up, of, capsys):
    learners = blow_up([3, 4, 7], of)
    result = run(corpus, tmp_path, steps=8, on_nonfinite="skip", backend=backend.name)
    assert (result.status, result.step, result.tokens) == ("finished", 8, 8 * 16)
    assert result.skipped == 3
    assert [r["step"] for r in read_log(tmp_path, "step")] == [1, 2, 5, 6, 8]
    skipped = read_log(tmp_path, "skipped")
    counts = [(r["step"], r["skipped"], r["in_a_row"]) for r in skipped]
    assert counts == [(3, 1, 1), (4, 2, 2), (7, 3, 1)]
    assert all({"loss", "grad_norm", "lr", "tokens"} <= r.keys() for r in skipped)
    assert learners[0].optimizer()["step"] == 5
    printed = capsys.readouterr().out
    assert "update left out (2 so far, 2 in a row)" in printed
    assert "3 updates were left out" in printed


def test_skipping_changes_nothing_but_the_skipped_steps(corpus, tmp_path, blow_up):
    run(corpus, tmp_path / "plain", steps=5)
    blow_up([4])
    run(corpus, tmp_path / "skip", steps=5, on_nonfinite="skip")
    assert curve(tmp_path / "skip")[:3] == curve(tmp_path / "plain")[:3]
    with pytest.raises(Diverged):
        run(corpus, tmp_path / "stop", steps=5)


def test_skipped_steps_push_no_checkpoint_out(backend, corpus, tmp_path, blow_up):
    blow_up([4, 5, 6, 7])
    with pytest.raises(Diverged, match=f"last good checkpoint is {tmp_path / 'step-00000003'}:"):
        run(corpus, tmp_path, backend=backend.name, on_nonfinite="skip", max_skips=4, save_every=1)
    saved = [path.name for path in checkpoint.complete_checkpoints(tmp_path)]
    assert saved == ["step-00000002", "step-00000003"]


def test_a_run_that_ends_on_skipped_steps_replaces_the_checkpoint_of_the_same_weights(
    corpus, tmp_path, blow_up
):
    blow_up([1, 4, 5])
    settings = {"on_nonfinite": "skip", "save_every": 1}
    run(corpus, tmp_path, stop_after=4, **settings)
    names = [path.name for path in checkpoint.complete_checkpoints(tmp_path)]
    assert names == ["step-00000002", "step-00000004"]
    run(corpus, tmp_path, stop_after=5, resume=True, **settings)
    names = [path.name for path in checkpoint.complete_checkpoints(tmp_path)]
    assert names == ["step-00000002", "step-00000005"]


def test_too_many_in_a_row_stop_the_run(corpus, tmp_path, blow_up):
    blow_up([2, 4, 5, 7, 8, 9])
    with pytest.raises(Diverged, match=r"at step 9: .* got loss nan .* in 3 steps in a row"):
        run(corpus, tmp_path, on_nonfinite="skip", max_skips=3, save_every=2)
    assert [r["step"] for r in read_log(tmp_path, "skipped")] == [2, 4, 5, 7, 8]
    assert [r["step"] for r in read_log(tmp_path, "diverged")] == [9]


@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_run_that_skips_resumes_to_the_same_end(backend, corpus, tmp_path, blow_up, stop):
    """Stopped before, within and after two skipped steps in a row."""
    blow_up([4, 5, 9])
    settings = {"steps": 10, "on_nonfinite": "skip", "max_skips": 3, "backend": backend.name}
    run(corpus, tmp_path / "whole", **settings)
    run(corpus, tmp_path / "parts", stop_after=stop, **settings)
    run(corpus, tmp_path / "parts", resume=True, **settings)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_count_in_a_row_goes_on_over_a_resume(corpus, tmp_path, blow_up):
    blow_up([4, 5, 6])
    settings = {"steps": 10, "on_nonfinite": "skip", "max_skips": 3}
    run(corpus, tmp_path, stop_after=5, **settings)
    with pytest.raises(Diverged, match="in 3 steps in a row"):
        run(corpus, tmp_path, resume=True, **settings)


def test_weights_that_are_not_finite_are_not_saved(corpus, tmp_path, monkeypatch):
    save = Trainer.save

    def spoiled(self):
        if self.step == 4:
            weights, optimizer = self.learner.weights(), self.learner.optimizer()
            weights["head.weight"][0, 0, 0] = math.nan
            self.learner.restore(weights, optimizer)
        return save(self)

    monkeypatch.setattr(Trainer, "save", spoiled)
    with pytest.raises(RunError, match=r"1 NaN and .* in head\.weight.*go on from .*step-00000003"):
        run(corpus, tmp_path, save_every=1)
    assert checkpoint.find(tmp_path) == tmp_path / "step-00000003"


def test_weights_that_are_not_finite_are_told_before_a_resume(corpus, tmp_path):
    path = run(corpus, tmp_path, stop_after=2).checkpoint
    weights = load_file(path / checkpoint.WEIGHTS)
    weights["head.weight"][0, 0, 0] = math.inf
    size = (path / checkpoint.WEIGHTS).stat().st_size
    save_file(weights, path / checkpoint.WEIGHTS)
    assert (path / checkpoint.WEIGHTS).stat().st_size == size
    for name in (checkpoint.COMPLETE,):  # as an older version would have marked it
        marks = {p.name: checkpoint.durable.mark(p) for p in path.iterdir() if p.name != name}
        checkpoint.durable.write_json(path / name, {"files": marks})
    with pytest.raises(CheckpointError, match=r"0 NaN and 1 infinite .* in head\.weight.*remove "):
        run(corpus, tmp_path, resume=True)
