"""A sweep: its queue, what it skips, resumes and refuses, and its search, on scripted training."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time

import pytest
from scripted_train import replace_training, script

from mlx_pam.config import SweepConfig
from mlx_pam.errors import ConfigError, RunError
from mlx_pam.training.lock import RunLock, is_held
from mlx_pam.training.metrics import read_log
from mlx_pam.training.sweep import children
from mlx_pam.training.sweep.run import Run, seconds_left
from mlx_pam.training.sweep.search import best_rate, beyond
from mlx_pam.training.sweep.sweep import plan, sweep


class Told:
    """What a sweep tells its user: the names of the runs that began and ended."""

    def __init__(self) -> None:
        self.began, self.ends, self.said, self.most = [], [], [], 0

    def say(self, text):
        self.said.append(text)

    def begun(self, run):
        self.began.append(run.name)

    def ended(self, run):
        self.ends.append((run.name, run.state))

    def renew(self, queue):
        self.most = max(self.most, sum(run.state == "running" for run in queue))


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    """In place of the training its script, inside this process."""
    replace_training(monkeypatch)


@pytest.fixture
def processes(scripted, monkeypatch):
    """In processes of their own, as they are without `scripted`."""
    monkeypatch.setattr(children, "subprocess", subprocess)


def settings(folder, **changes):
    return SweepConfig(
        **{"models": "pam", "scales": "300k", "tokens": 4096 * 3, "out": folder / "sweep"} | changes
    )


def names(config):
    return [run.name for run in plan(config)]


def test_the_queue_has_all_of_a_scale_then_all_of_a_seed(tmp_path):
    config = settings(
        tmp_path, models="pam,transformer", scales="1m,300k", variants="no-gate", seeds=2
    )
    first = ["pam-1m-seed-0", "pam-no-gate-1m-seed-0", "transformer-1m-seed-0"]
    second = [name.replace("seed-0", "seed-1") for name in first]
    assert names(config) == first + second + [n.replace("1m", "300k") for n in first + second]


def test_a_variant_that_a_model_cannot_have_is_left_out(tmp_path):
    config = settings(tmp_path, models="sam,transformer,pam", variants="phase-qk,recall")
    found = [name.removesuffix("-300k-seed-0") for name in names(config)]
    assert found == ["sam", "sam-recall", "transformer", "pam", "pam-phase-qk", "pam-recall"]


def test_names_are_the_folders_seen_from_the_sweeps(tmp_path):
    result = sweep(searched(tmp_path, out=tmp_path / "search"), Told())
    assert [run.name for run in result.runs] == ["pam-300k-seed-0"]
    for run in [*result.runs, *result.searched]:
        assert (tmp_path / "search" / run.name / "log.jsonl").exists()


def test_all_runs_see_the_same_tokens_in_whole_steps(tmp_path):
    config = settings(tmp_path, tokens=10_000, seq_len=32, batch_size=4, accumulate=3)
    assert (config.steps, config.search_steps) == (26, 5)
    assert {run.config.steps for run in plan(config)} == {26}


@pytest.mark.parametrize(
    "changes",
    [
        {"models": "pam,rnn"}, {"models": " , "}, {"models": "pam,pam"}, {"scales": "7q"},
        {"variants": "no-such"}, {"seeds": 0}, {"tokens": 4095}, {"jobs": 0}, {"eval_every": 0},
        {"search": "fast"}, {"search": "2.0"}, {"search": ","}, {"search_tokens": 9000},
        {"search": "1e-3", "search_tokens": 1}, {"search": "1e-3", "rates": "a.json"},
        {"recipe": "canonical", "rates": "a.json"}, {"data": " "}, {"backend": "jax"},
    ],
)  # fmt: skip
def test_settings_that_make_no_sweep_are_errors(tmp_path, changes):
    with pytest.raises(ConfigError, match=f"^{next(reversed(changes))} must be"):
        settings(tmp_path, **changes)


def test_runs_begin_in_order_and_what_is_finished_is_skipped(tmp_path):
    config = settings(tmp_path, models="pam,sam")
    first, again = Told(), Told()
    result = sweep(config, first)
    assert result.status == "finished"
    assert first.began == ["pam-300k-seed-0", "sam-300k-seed-0"]
    assert [run.to_dict()["tokens"] for run in result.runs] == [3 * 4096] * 2
    assert sweep(config, again).to_dict() == result.to_dict()
    assert again.began == []


def test_a_sweep_may_be_extended_and_then_asked_for_less(tmp_path):
    sweep(settings(tmp_path), Told())
    told = Told()
    more = settings(
        tmp_path, models="pam,sam", scales="300k,1m", variants="no-gate", seeds=2, jobs=4
    )
    sweep(more, told)
    assert "pam-300k-seed-0" not in told.began
    assert len(told.began) == 15
    sweep(settings(tmp_path, models="sam", jobs=2, save_every=7), Told())
    record = json.loads((more.out / "sweep.json").read_text())
    assert record["settings"]["models"] == "pam,sam"
    assert (record["settings"]["scales"], record["settings"]["seeds"]) == ("300k,1m", 2)
    assert {run["name"] for run in record["runs"]} == set(names(more))


@pytest.mark.parametrize(
    "changes",
    [{"tokens": 4096 * 4}, {"dtype": "bfloat16"}, {"data": "wikitext-2"}, {"recipe": "canonical"},
     {"search": "1e-3"}, {"tokenizer": "bytes"}, {"eval_every": 7}],
)  # fmt: skip
def test_other_settings_than_those_recorded_are_refused(tmp_path, changes):
    config = settings(tmp_path)
    sweep(config, Told())
    before = (config.out / "sweep.json").read_bytes()
    with pytest.raises(ConfigError, match=f"^{next(iter(changes))} must be .*begun.*set it back"):
        sweep(settings(tmp_path, **changes), Told())
    assert (config.out / "sweep.json").read_bytes() == before


def test_a_damaged_record_is_refused_by_name(tmp_path):
    config = settings(tmp_path)
    config.out.mkdir()
    for text in ("{", "[]", '{"settings": 1}', '{"runs": []}'):
        (config.out / "sweep.json").write_text(text)
        with pytest.raises(ConfigError, match=r"sweep\.json"):
            plan(config)


def test_a_run_that_fails_stops_no_other_and_is_tried_again(tmp_path, monkeypatch, processes):
    config = settings(tmp_path, models="pam,sam")
    monkeypatch.setenv("SCRIPT", script(fails=["pam-300k-seed-0"]))
    result = sweep(config, Told())
    assert result.status == "failed"
    assert [run.state for run in result.runs] == ["failed", "finished"]
    assert result.runs[0].error == "the disk is full"
    monkeypatch.setenv("SCRIPT", script())
    told = Told()
    assert sweep(config, told).status == "finished"
    assert told.began == ["pam-300k-seed-0"]
    assert [r["step"] for r in read_log(plan(config)[0].folder, "step")] == [1, 2, 3]


def test_several_runs_at_once_share_the_cores(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("SCRIPT", script(pause=0.2))
    monkeypatch.setattr(children, "cores", lambda: 8)
    for name in children.THREADS:
        monkeypatch.delenv(name, raising=False)
    told = Told()
    result = sweep(settings(tmp_path, models="pam,sam,transformer", jobs=2), told)
    assert told.most == 2
    threads = [read_log(run.folder, "start")[0]["threads"] for run in result.runs]
    assert threads == ["4"] * 3


def test_two_sweeps_in_a_folder_are_refused(tmp_path):
    config = settings(tmp_path)
    with RunLock(config.out) as lock:
        lock.take()
        with pytest.raises(RunError, match="no other run is at work"):
            sweep(config, Told())


def test_ctrl_c_is_passed_on_once_and_the_sweep_goes_on_later(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("SCRIPT", script(pause=0.1))
    config = settings(tmp_path, models="pam,sam", tokens=4096 * 20)
    told = Told()

    def interrupt() -> None:
        run = Run(next(config.runs()))
        while run.step < 2:
            run.look()
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = sweep(config, told)
    thread.join()
    assert result.status == "interrupted"
    assert [run.state for run in result.runs] == ["interrupted", "waiting"]
    assert read_log(result.runs[0].folder, "end")[-1]["status"] == "interrupted"
    monkeypatch.setenv("SCRIPT", script())
    assert sweep(config, Told()).status == "finished"
    steps = [record["step"] for record in read_log(result.runs[0].folder, "step")]
    assert steps == list(range(1, 21))


def test_what_a_killed_sweep_left_at_work_is_waited_for(tmp_path):
    config = settings(tmp_path)
    run = Run(next(config.runs()))
    with RunLock(run.folder) as lock:
        lock.take()
        assert is_held(run.folder)

        class Frees(Told):
            def say(self, text):
                super().say(text)
                lock.__exit__(None, None, None)

        told = Frees()
        assert sweep(config, told).status == "finished"
    assert told.said == [f"waiting   {run.name}: another process is at work in it"]
    assert told.began == [run.name]


def test_time_left_is_in_proportion_to_steps_and_parameters(tmp_path):
    runs = plan(settings(tmp_path, scales="300k,3m"))
    assert seconds_left(runs, 1) is None
    small, large = runs
    small.step, small.seconds_per_step, small.state = 1, 2.0, "running"
    expected = 2 * 2.0 + 3 * 2.0 * large.parameters / small.parameters
    assert seconds_left(runs, 1) == pytest.approx(expected)
    assert seconds_left(runs, 2) == pytest.approx(expected / 2)


# The search


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


def searched(folder, **changes):
    return settings(folder, search="1e-3,2e-3", search_tokens=8192, **changes)


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
