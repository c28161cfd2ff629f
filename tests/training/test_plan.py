"""What a run will be is told before its first step, and that it cannot be too."""

from __future__ import annotations

import pytest
from small_run import run

from mlx_pam.errors import ConfigError


def test_the_opening_lines_tell_what_the_run_will_be(corpus, tmp_path, capsys):
    result = run(corpus, tmp_path / "out", steps=2)
    before, after = capsys.readouterr().out.split("step 1/2", 1)
    splits = result.plan["tokens"]
    for figure in (
        f"{result.plan['parameters']:,} parameters",
        f"train {splits['train']:,}",
        f"validation {splits['validation']:,}",
        "steps    2 (",
        "of 16 tokens",
        "time     about 0:00:",
        "29.1 MB in",
    ):
        assert figure in before
    assert "finished at step 2" in after


def test_a_dry_run_says_the_same_and_writes_nothing(corpus, tmp_path, capsys):
    result = run(corpus, tmp_path / "out", steps=2, dry_run=True)
    assert result.status == "dry run"
    assert f"{result.plan['parameters']:,} parameters" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_no_room_for_checkpoints_is_said_before_training(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_pam.training.plan._free_disk", lambda _: 1000)
    with pytest.raises(ConfigError, match=r"out must be on a disk with .* free"):
        run(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_needs_no_room_for_the_checkpoints_that_are_there(
    corpus, tmp_path, monkeypatch
):
    first = run(corpus, tmp_path, steps=4, stop_after=2)
    room = 2.5 * first.plan["checkpoint_bytes"]
    monkeypatch.setattr("mlx_pam.training.plan._free_disk", lambda _: room)
    assert run(corpus, tmp_path, steps=4, resume=True).status == "finished"
    with pytest.raises(ConfigError, match=r"out must be on a disk with .* or give another --out"):
        run(corpus, tmp_path / "new")
    monkeypatch.setattr("mlx_pam.training.plan._free_disk", lambda _: 1000)
    with pytest.raises(ConfigError, match=r"out must be on a disk with .*: free some$"):
        run(corpus, tmp_path, steps=4, keep=9, resume=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 1000}, "warmup 100 (the recipe's 500 cut to a tenth of the steps), weight"),
        ({"steps": 5000}, "warmup 500, weight"),
        ({"steps": 1000, "warmup_steps": 500}, "warmup 500, weight"),
    ],
)
def test_a_warmup_that_is_cut_is_said(corpus, tmp_path, capsys, changes, said):
    settings = {"recipe": "canonical", "lr": None, "dry_run": True}
    run(corpus, tmp_path / "out", **settings, **changes)
    assert said in " ".join(capsys.readouterr().out.split())
