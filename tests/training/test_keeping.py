"""The newest checkpoints are kept, and the one with the best validation loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import assert_same_run, run

from mlx_pam import checkpoint
from mlx_pam.checkpoint import Validation
from mlx_pam.training import session
from mlx_pam.training.metrics import LOG, read_log


def checkpoints(out: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoint.complete_checkpoints(out)]


@pytest.fixture
def losses(monkeypatch) -> list[float]:
    """What the evaluations of the next runs will find, one after the other."""
    found: list[float] = []
    monkeypatch.setattr(session, "split_loss", lambda *_, **__: found.pop(0))
    return found


def test_checkpoints_beyond_those_kept_are_removed(corpus, tmp_path):
    run(corpus, tmp_path, steps=7, save_every=2, keep=2)
    visible = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert sorted(visible) == [LOG, "step-00000006", "step-00000007"]


def test_the_best_is_saved_when_it_is_found_and_stays(corpus, tmp_path, losses, capsys):
    losses += [5.0, 4.0, 3.0, 3.5, 3.0, 9.0, 8.0]
    run(corpus, tmp_path, steps=14, eval_every=2, save_every=4, keep=1)
    assert checkpoint.best(tmp_path) == Validation(6, 3.0)  # the first of equals
    assert checkpoints(tmp_path) == [6, 14]
    assert f"best validation loss 3.0000 at step 6: {tmp_path / 'best'}" in capsys.readouterr().out
    assert checkpoint.load(tmp_path / "best").training["step"] == 6
    saved = [record["step"] for record in read_log(tmp_path, "checkpoint")]
    assert saved == [2, 4, 6, 8, 12, 14]


def test_a_loss_that_is_not_finite_is_never_the_best(corpus, tmp_path, losses):
    losses += [float("nan"), float("inf"), 7.0, float("nan")]
    run(corpus, tmp_path, steps=4, eval_every=1, save_every=1, keep=1)
    assert checkpoint.best(tmp_path) == Validation(3, 7.0)


def test_without_saves_on_the_way_only_the_end_can_be_the_best(corpus, tmp_path, losses):
    losses += [1.0, 2.0]
    run(corpus, tmp_path, steps=4, eval_every=2, save_every=0)
    assert checkpoint.best(tmp_path) == Validation(4, 2.0)
    assert checkpoints(tmp_path) == [4]


def test_the_best_so_far_is_known_after_a_resume(corpus, tmp_path, losses):
    losses += [3.0, 4.0, 5.0, 2.0]
    settings = {"steps": 8, "eval_every": 2, "save_every": 2, "keep": 1}
    run(corpus, tmp_path, stop_after=4, **settings)
    run(corpus, tmp_path, resume=True, stop_after=6, **settings)
    assert (checkpoint.best(tmp_path), checkpoints(tmp_path)) == (Validation(2, 3.0), [2, 6])
    run(corpus, tmp_path, resume=True, **settings)
    assert (checkpoint.best(tmp_path), checkpoints(tmp_path)) == (Validation(8, 2.0), [8])


def test_a_cut_between_the_checkpoint_and_its_record_as_the_best_is_made_good(
    corpus, tmp_path, monkeypatch
):
    settings = {"steps": 6, "eval_every": 2, "save_every": 2, "lr": 3e-2}
    run(corpus, tmp_path / "whole", **settings)

    def cut(*_):
        raise RuntimeError("the power is cut")

    for _ in range(3):  # in every session, also in the one that finds the run finished
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "record_best", cut)
            with pytest.raises(RuntimeError, match="power"):
                run(corpus, tmp_path / "cut", resume=(tmp_path / "cut").exists(), **settings)
        run(corpus, tmp_path / "cut", resume=True, stop_after=1, **settings)
    run(corpus, tmp_path / "cut", resume=True, **settings)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
