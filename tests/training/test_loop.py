"""A run learns, logs every step, and is not changed by what it does between its steps."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from small_run import run

from mlx_pam import checkpoint
from mlx_pam.training.metrics import read_log


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
    losses = [[record["loss"] for record in read_log(tmp_path / name, "step")] for name in "ab"]
    assert losses[0] == losses[1]
    weights = [checkpoint.load(result.checkpoint).weights for result in (plain, busy)]
    for name, array in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], array, err_msg=name)
