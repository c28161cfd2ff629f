"""A run folder is begun, gone on with or begun anew, and never confused with another run's."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from small_run import TINY, assert_same_run, curve, run, small

from mlx_pam import checkpoint
from mlx_pam.config import TrainConfig
from mlx_pam.errors import CheckpointError, ConfigError, DataError
from mlx_pam.training.lock import LOCK
from mlx_pam.training.loop import train
from mlx_pam.training.metrics import LOG, read_log
from mlx_pam.training.trainer import Trainer


def test_a_folder_with_a_run_is_not_overwritten(corpus, tmp_path):
    run(corpus, tmp_path, steps=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"out must be a folder without a run.*--resume"):
        run(corpus, tmp_path, steps=1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_overwrite_begins_anew_and_keeps_the_old_run_in_a_folder_of_its_own(
    corpus, tmp_path, capsys
):
    (tmp_path / "notes.txt").write_text("mine")
    for steps in (3, 2):
        run(corpus, tmp_path, steps=steps, overwrite=True, eval_every=1)
    printed = capsys.readouterr().out
    assert f"the run that was in {tmp_path} is now in {tmp_path / 'old-1'}" in printed
    assert (checkpoint.load(tmp_path).training["step"], len(read_log(tmp_path, "step"))) == (2, 2)
    old = tmp_path / "old-1"
    assert (checkpoint.load(old).training["step"], len(read_log(old, "step"))) == (3, 3)
    assert checkpoint.best(old).step == 3
    run(corpus, tmp_path, steps=1, overwrite=True)
    assert checkpoint.load(tmp_path / "old-2").training["step"] == 2
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [LOCK, LOG, "notes.txt", "old-1", "old-2", "step-00000001"]
    again = run(corpus, old, steps=5, resume=True, eval_every=1)  # it is a run like any other
    assert again.step == 5


def test_overwrite_moves_nothing_before_it_is_known_that_the_run_can_begin(corpus, tmp_path):
    run(corpus, tmp_path, steps=1)
    with pytest.raises(DataError):
        run(corpus, tmp_path, seq_len=5000, overwrite=True)
    assert checkpoint.find(tmp_path) == tmp_path / "step-00000001"
    with pytest.raises(ConfigError, match="overwrite must be off with resume"):
        run(corpus, tmp_path, overwrite=True, resume=True)


@pytest.mark.parametrize("left", [None, LOCK, ".step-00000002.saving/model.safetensors"])
def test_resume_of_a_run_that_never_began_starts_it(corpus, tmp_path, capsys, left):
    """As a supervisor needs it that always passes --resume."""
    if left:
        (tmp_path / "run" / left).parent.mkdir(parents=True)
        (tmp_path / "run" / left).touch()
    result = run(corpus, tmp_path / "run", steps=2, resume=True)
    assert (result.status, result.step) == ("finished", 2)
    assert "nothing was saved yet: the run starts at step 0" in capsys.readouterr().out
    assert len(curve(tmp_path / "run")) == 2


def test_checkpoints_that_are_all_damaged_are_not_passed_over(corpus, tmp_path):
    run(corpus, tmp_path, steps=1)
    (tmp_path / "step-00000001" / checkpoint.COMPLETE).unlink()
    with pytest.raises(CheckpointError, match=r"nothing to resume: .* add --overwrite to start"):
        run(corpus, tmp_path, resume=True)
    with pytest.raises(ConfigError, match="out must be a folder without a run"):
        run(corpus, tmp_path)


def test_a_run_that_ended_before_its_first_checkpoint_is_resumed_from_its_beginning(
    corpus, tmp_path, monkeypatch, capsys
):
    run(corpus, tmp_path / "whole", steps=4)

    def cut(self):
        raise RuntimeError("the power is cut")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", cut)
        with pytest.raises(RuntimeError, match="power"):
            run(corpus, tmp_path / "cut", steps=4, stop_after=2)
    assert len(curve(tmp_path / "cut")) == 2
    capsys.readouterr()
    run(corpus, tmp_path / "cut", steps=4, resume=True)
    assert "nothing was saved yet: the run starts at step 0" in capsys.readouterr().out
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_serves(corpus, tmp_path):
    run(corpus, tmp_path / "whole", steps=6)
    out = tmp_path / "run"
    run(corpus, out, steps=6, save_every=2, stop_after=4)
    newest = out / "step-00000004"
    weights = bytearray((newest / checkpoint.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (newest / checkpoint.WEIGHTS).write_bytes(weights)
    with pytest.raises(CheckpointError, match=rf"{newest}/model.* is damaged.*; remove {newest} "):
        run(corpus, out, steps=6, resume=True)
    shutil.rmtree(newest)
    run(corpus, out, steps=6, resume=True)
    assert_same_run(tmp_path / "whole", out)


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory) -> Path:
    """A run of 20 steps that was left after 4."""
    out = tmp_path_factory.mktemp("stopped")
    run(corpus, out, stop_after=4)
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 32}, "seq_len must be 8 to resume .*, got 32"),
        ({"seed": 2}, "seed must be 1 to resume .*, got 2"),
        ({"steps": 3}, "steps must be at least 4, .* got 3"),
    ],
)
def test_a_run_with_other_settings_is_not_resumed(corpus, stopped, change, message):
    with pytest.raises(ConfigError, match=message):
        run(corpus, stopped, resume=True, **change)


def test_a_run_on_other_data_is_not_resumed(corpus, stopped, tmp_path):
    other = tmp_path / corpus.name
    other.write_text(corpus.read_text() + " more")
    with pytest.raises(ConfigError, match=r"text of the data changed since"):
        run(other, stopped, resume=True)


def test_another_model_is_not_resumed(corpus, stopped):
    with pytest.raises(ConfigError, match=r"dim must be 8 to resume .*, got 12"):
        train(small(corpus, stopped, resume=True), dataclasses.replace(TINY, dim=12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": "1m"}, r"scale must be '300k' to resume .*, got '1m'"),
        ({"model": "sam"}, r"model must be 'pam' to resume .*, got 'sam'"),
        ({"variant": "recall"}, r"variant must be None to resume .*, got 'recall'"),
        ({"protect": "channel"}, r"protect must be 'head' to resume .*, got 'channel'"),
    ],
)
def test_another_model_is_named_by_its_setting(corpus, preset, change, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        train(dataclasses.replace(preset, resume=True, **change))


@pytest.fixture(scope="module")
def preset(corpus, tmp_path_factory) -> TrainConfig:
    """The settings of a run of a preset, left after its first step."""
    out = tmp_path_factory.mktemp("preset")
    config = small(corpus, out, scale="300k", tokenizer="bytes", stop_after=1)
    train(config)
    return config


def test_a_finished_run_resumed_has_nothing_left_to_do(corpus, tmp_path):
    first = run(corpus, tmp_path, steps=2)
    again = run(corpus, tmp_path, steps=2, resume=True)
    assert (again.status, again.step, again.checkpoint) == ("finished", 2, first.checkpoint)


def test_a_stop_that_already_lies_behind_changes_nothing(corpus, tmp_path):
    first = run(corpus, tmp_path, stop_after=3)
    again = run(corpus, tmp_path, stop_after=2, resume=True)
    assert (again.status, again.step, again.checkpoint) == ("stopped", 3, first.checkpoint)


def test_a_run_may_be_made_longer_and_says_what_changed(corpus, tmp_path, capsys):
    run(corpus, tmp_path, steps=2)
    result = run(corpus, tmp_path, steps=4, batch_size=1, resume=True)
    assert result.step == 4
    assert result.tokens == 2 * 16 + 2 * 8
    printed = capsys.readouterr().out
    assert "note: steps was 2, and is 4 from here on" in printed
    assert "note: batch_size was 2, and is 1 from here on" in printed


def test_a_longer_schedule_says_how_the_learning_rate_jumps(corpus, tmp_path, capsys):
    run(corpus, tmp_path, steps=10, warmup_steps=0)
    capsys.readouterr()
    run(corpus, tmp_path, steps=40, stop_after=11, warmup_steps=0, resume=True)
    rates = {record["step"]: record["lr"] for record in read_log(tmp_path, "step")}
    note = (
        f"the learning rate of step 11 is {rates[11]:.3g} (step 10, the old schedule's last, had "
        f"{rates[10]:.3g}); pass a lower --lr"
    )
    assert rates[11] > 2 * rates[10]
    assert note in " ".join(capsys.readouterr().out.split())


def test_a_resumed_schedule_that_is_unchanged_says_nothing_of_the_learning_rate(
    corpus, tmp_path, capsys
):
    run(corpus, tmp_path, stop_after=4)
    run(corpus, tmp_path, stop_after=5, resume=True)
    assert "the learning rate of step" not in capsys.readouterr().out
    run(corpus, tmp_path, stop_after=6, resume=True, lr=5e-3)
    assert "the learning rate of step 6 is" in capsys.readouterr().out


def test_another_backend_may_go_on_and_is_named(corpus, tmp_path, capsys):
    pytest.importorskip("torch")
    run(corpus, tmp_path / "mlx", steps=4)
    run(corpus, tmp_path / "both", steps=4, stop_after=2)
    run(corpus, tmp_path / "both", steps=4, backend="torch", resume=True)
    assert "note: backend was mlx, and is torch from here on" in capsys.readouterr().out
    alone, both = ([r["loss"] for r in curve(tmp_path / name)] for name in ("mlx", "both"))
    assert both == pytest.approx(alone, abs=1e-3)
