from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from small_run import TINY, run, small

from mlx_pam import checkpoint
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.training import loop
from mlx_pam.training.loop import train
from mlx_pam.training.metrics import LOG, read_log
from mlx_pam.training.trainer import Diverged, Trainer


def test_a_run_learns_and_logs_every_step_whole(corpus, tmp_path):
    result = run(corpus, tmp_path, steps=30, lr=3e-2, eval_every=10)
    steps = read_log(tmp_path, "step")
    assert steps[0]["loss"] == pytest.approx(math.log(50257), abs=0.2)
    assert steps[-1]["loss"] < steps[0]["loss"] - 2
    assert [record["step"] for record in steps] == list(range(1, 31))
    assert [record["tokens"] for record in steps] == [16 * step for step in range(1, 31)]
    for record in steps:
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
        assert min(record[key] for key in ("lr", "grad_norm", "tokens_per_s", "peak_memory")) > 0
        assert record["time"] > 1.6e9
    assert [record["step"] for record in read_log(tmp_path, "evaluation")] == [10, 20, 30]
    assert result.status == "finished"
    assert result.validation_loss == read_log(tmp_path, "evaluation")[-1]["loss"]
    assert result.checkpoint == tmp_path / "step-00000030"


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


def test_json_keeps_progress_off_stdout(corpus, tmp_path, capsys):
    result = run(corpus, tmp_path, steps=1, json=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "step 1/1" in printed.err
    assert json.loads(json.dumps(result.to_dict()))["checkpoint"] == str(tmp_path / "step-00000001")


def test_samples_are_logged_with_their_repetition(corpus, tmp_path):
    run(corpus, tmp_path, steps=3, sample_every=2, sample_tokens=12, sample_prompt="the river")
    samples = read_log(tmp_path, "sample")
    assert [record["step"] for record in samples] == [2, 3]
    for record in samples:
        assert record["prompt"] == "the river"
        assert record["text"]
        assert 0 <= record["repetition_4"] <= record["repetition_3"] < 1
        assert 0 < record["unique_ratio"] <= 1


def test_bfloat16_arithmetic_learns_and_keeps_float32_weights(corpus, tmp_path):
    result = run(corpus, tmp_path, lr=3e-2, dtype="bfloat16")
    records = read_log(tmp_path, "step")
    assert records[-1]["loss"] < records[0]["loss"] - 1
    stored = checkpoint.load(result.checkpoint).weights
    assert {array.dtype for array in stored.values()} == {np.dtype(np.float32)}


def test_evaluation_samples_and_saves_do_not_touch_the_training(corpus, tmp_path):
    plain = run(corpus, tmp_path / "a", steps=6)
    busy = run(
        corpus, tmp_path / "b", steps=6, eval_every=3, sample_every=2, save_every=1, sample_tokens=3
    )
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert_same_weights(plain.checkpoint, busy.checkpoint)


def test_checkpoints_beyond_those_kept_are_removed(corpus, tmp_path):
    run(corpus, tmp_path, steps=7, save_every=2, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        LOG, "step-00000006", "step-00000007",
    ]  # fmt: skip


def test_a_folder_with_a_run_is_not_overwritten(corpus, tmp_path):
    run(corpus, tmp_path, steps=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"out must be a folder without a run.*--resume"):
        run(corpus, tmp_path, steps=1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_nothing_to_resume_is_said(corpus, tmp_path):
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run(corpus, tmp_path, resume=True)


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
    with pytest.raises(ConfigError, match=r"data(?: fingerprint)? must be .* to resume"):
        run(other, stopped, resume=True)


def test_another_model_is_not_resumed(corpus, stopped):
    with pytest.raises(ConfigError, match=r"dim must be 8 to resume .*, got 12"):
        train(small(corpus, stopped, resume=True), dataclasses.replace(TINY, dim=12))


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


def test_another_backend_may_go_on_and_is_named(corpus, tmp_path, capsys):
    pytest.importorskip("torch")
    run(corpus, tmp_path / "mlx", steps=4)
    run(corpus, tmp_path / "both", steps=4, stop_after=2)
    run(corpus, tmp_path / "both", steps=4, backend="torch", resume=True)
    assert "note: backend was mlx, and is torch from here on" in capsys.readouterr().out
    assert losses(tmp_path / "both") == pytest.approx(losses(tmp_path / "mlx"), abs=1e-3)


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
    with pytest.raises(ConfigError, match="out must be on a disk with"):
        run(corpus, tmp_path / "new")


@pytest.mark.parametrize("blow_up", ["loss", "gradient"])
def test_a_blow_up_stops_the_run_before_it_reaches_the_weights(
    corpus, tmp_path, monkeypatch, blow_up
):
    seen = {}
    build = Trainer.__init__

    def sabotage(self, *args):
        build(self, *args)
        learner = self.learner
        gradient, grad_norm, apply = learner.gradient, learner.gradient_norm, learner.update

        def bad_gradient(batch, total):
            loss = gradient(batch, total)
            return math.nan if blow_up == "loss" and self.step == 5 else loss

        def bad_norm():
            return math.inf if blow_up == "gradient" and self.step == 5 else grad_norm()

        def watched_update(lr):
            apply(lr)
            seen["weights"] = learner.weights()

        learner.gradient = bad_gradient
        learner.gradient_norm = bad_norm
        learner.update = watched_update
        seen["learner"] = learner

    monkeypatch.setattr(Trainer, "__init__", sabotage)
    with pytest.raises(Diverged) as error:
        run(corpus, tmp_path, save_every=2)
    text = str(error.value)
    assert "diverged at step 6" in text
    assert str(tmp_path / "step-00000004") in text
    assert ("loss nan" if blow_up == "loss" else "gradient norm inf") in text
    record = read_log(tmp_path, "diverged")[0]
    assert record["step"] == 6
    assert f"{record['lr']:.3g}" in text
    after = seen["learner"].weights()
    for name, array in seen["weights"].items():
        np.testing.assert_array_equal(after[name], array)


def test_weights_that_are_not_numbers_are_caught_in_the_first_step(corpus, tmp_path):
    first = run(corpus, tmp_path, stop_after=2)
    found = checkpoint.load(first.checkpoint, optimizer=True)
    found.weights["head.weight"][0, 0, 0] = math.nan
    bad = checkpoint.step_folder(tmp_path, 3)
    training = found.training | {"step": 3}
    checkpoint.save(bad, found.config, found.weights, found.optimizer, training)
    with pytest.raises(Diverged, match=r"at step 4: .* got loss nan .*step-00000003: resume it"):
        run(corpus, tmp_path, resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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


def test_a_run_interrupted_in_its_evaluation_resumes_to_the_same_end(corpus, tmp_path, monkeypatch):
    run(corpus, tmp_path / "a", steps=8, eval_every=4)
    evaluate = loop.split_loss

    def interrupted_evaluation(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "split_loss", interrupted_evaluation)
        assert run(corpus, tmp_path / "b", steps=8, eval_every=4).step == 4
    result = run(corpus, tmp_path / "b", steps=8, eval_every=4, resume=True)
    assert result.status == "finished"
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert_same_weights(tmp_path / "a", tmp_path / "b")


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in read_log(out, "step")]


def assert_same_weights(one: Path, other: Path) -> None:
    expected, found = checkpoint.load(one).weights, checkpoint.load(other).weights
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
