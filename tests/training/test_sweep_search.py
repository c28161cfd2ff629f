"""The search of a sweep for learning rates: what it tries, chooses and records."""

from __future__ import annotations

import json
import math

import pytest
from scripted_sweep import Told, searched
from scripted_sweep import scripted as scripted
from scripted_train import script

from mlx_pam.training.sweep.search import best_rate, beyond
from mlx_pam.training.sweep.sweep import sweep


def test_the_best_rate_has_the_lowest_finite_loss():
    assert best_rate({1.0: 3.0, 0.5: 2.0, 0.25: math.nan, 0.125: math.inf}) == 0.5
    assert best_rate({0.5: 2.0, 0.25: 2.0}) == 0.25
    assert best_rate({0.5: math.inf}) is None


def test_a_grid_is_extended_only_beyond_the_edge_where_the_best_rate_is():
    assert beyond({0.1: 2.0, 0.2: 1.0, 0.4: 2.0}) == []
    assert beyond({0.1: 1.0, 0.2: 2.0}) == [0.05]
    assert beyond({0.1: 2.0, 0.2: 1.0}) == [0.4]
    assert beyond({0.1: 1.0}) == [0.05, 0.2]
    assert beyond({0.1: math.inf, 0.2: math.inf}) == [0.05]
    assert beyond({0.4: 2.0, 0.8: 1.0}) == []  # a rate is at most 1
    assert beyond({1.9e-9: 1.0, 0.1: 2.0}) == []  # too small to move a weight
    assert beyond({5e-324: math.inf}) == []


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (2e-3, [1e-3, 2e-3, 4e-3]),
        (4e-3, [1e-3, 2e-3, 4e-3, 8e-3]),
        (1e-4, [1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3]),  # no more than three times
        (1.0, [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]),
    ],
)
def test_the_search_goes_on_until_the_best_rate_is_inside(tmp_path, monkeypatch, best, tried):
    monkeypatch.setenv("SCRIPT", script(best=best))
    config = searched(tmp_path, variants="no-gate", seeds=2)
    told = Told()
    result = sweep(config, told)
    entry = json.loads((config.out / "learning_rates.json").read_text())["pam"]["300k"]
    assert [row["rate"] for row in entry["tried"]] == tried
    chosen = min(tried, key=lambda rate: abs(math.log(rate / best)))
    assert entry["rate"] == chosen
    assert ("note" in entry) == (chosen in (tried[0], tried[-1]))
    assert (entry["tokens"], entry["tokenizer"], entry["data"]) == (8192, "gpt2", "sample")
    assert {run.lr for run in result.runs} == {chosen}
    assert {run.config.seed for run in result.searched} == {0}
    assert told.began[-4:] == [run.name for run in result.runs]
    again = Told()
    assert sweep(config, again).status == "finished"
    assert again.began == []


def test_a_rate_that_diverges_is_infinitely_bad_and_trained_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRIPT", script(best=1.0, diverges=1.5e-3))
    config = searched(tmp_path)
    result = sweep(config, Told())
    assert result.status == "finished"
    assert {run.lr for run in result.runs} == {1e-3}
    entry = json.loads((config.out / "learning_rates.json").read_text())["pam"]["300k"]
    assert [row["validation_loss"] is None for row in entry["tried"]] == [False, False, True]


def test_runs_whose_rate_cannot_be_found_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRIPT", script(fails=["pam-300k-lr-0.002"], best=1.5e-3))
    result = sweep(searched(tmp_path, models="pam,sam"), Told())
    assert result.status == "failed"
    assert [run.state for run in result.runs] == ["left out", "finished"]
    assert "search/pam-300k-lr-0.002: the disk is full" in result.runs[0].error
    monkeypatch.setenv("SCRIPT", script(diverges=0.0))
    result = sweep(searched(tmp_path / "all", models="pam"), Told())
    assert "no rate from 0.000125 on" in result.runs[0].error
