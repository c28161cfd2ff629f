"""The trial of a smooth phase trains what it says and nothing twice; the page has its rows."""

from __future__ import annotations

from pathlib import Path

from small_run import TINY

from mlx_pam import checkpoint
from mlx_pam.benchmarks import phase_trial, rows
from mlx_pam.config import PRESETS
from mlx_pam.training.metrics import read_log


def test_a_run_is_trained_once_and_has_one_row(backend, corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS["pam"], "300k", TINY)
    out, runs = tmp_path / "rows.jsonl", tmp_path / "runs"
    words = f"--data {corpus} --eps 0.25 --rates 0.01 --seeds 3 --steps 2 --seq-len 16"
    words = [*words.split(), "--backend", backend.name, "--runs", str(runs), "--out", str(out)]
    for _ in range(2):
        for command in ("train", "measure"):
            assert phase_trial.main([command, *words]) == 0
    assert not list(runs.glob("*/old-*"))
    (row,) = rows.read(out)
    run = runs / row["run"]
    assert checkpoint.load(run).config.phase_eps == row["eps"] == 0.25
    (evaluation,) = read_log(run, "evaluation")
    assert (row["loss"], row["lr"], row["seed"]) == (evaluation["loss"], 0.01, 3)
    assert row["tokens"] == 2 * 4 * 16


def row(eps: float, seed: int, loss: float, figure: float) -> phase_trial.Row:
    figures = dict.fromkeys(("conditioning_start", "conditioning_end"), 1000 * figure)
    figures |= dict.fromkeys(("bfloat16_start", "bfloat16_end"), figure / 10)
    return {"eps": eps, "lr": 0.01, "seed": seed, "loss": loss} | figures


def test_the_table_has_every_loss_and_the_means_of_seeds():
    measured = [row(0.1, 1, 1.4, 1), row(0.0, 0, 1.5, 2), row(0.1, 0, 1.45, 3), row(0.0, 1, 1.6, 4)]
    assert [*phase_trial.table(measured)][2:] == [
        "| 0.01 | 0 | 1.500, 1.600 | +0.000 | 3,000 | 3,000 | 30.0% | 30.0% |",
        "| 0.01 | 0.1 | 1.450, 1.400 | -0.125 | 2,000 | 2,000 | 20.0% | 20.0% |",
    ]
    (alone,) = [*phase_trial.table(measured[:1])][2:]
    assert alone == "| 0.01 | 0.1 | 1.400 |  | 1,000 | 1,000 | 10.0% | 10.0% |"


def test_the_page_has_the_table_of_the_rows_that_are_kept():
    lines = (Path(__file__).parents[2] / "docs" / "study.md").read_text("utf-8").splitlines()
    table = phase_trial.table(rows.read(phase_trial.RESULTS))
    assert [line for line in table if line not in lines] == []
