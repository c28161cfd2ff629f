"""A sweep: its queue, and what it skips, goes on to and refuses, on scripted training."""

from __future__ import annotations

import json

import pytest
from scripted_sweep import Told, searched, settings
from scripted_sweep import scripted as scripted

from mlx_pam.errors import ConfigError, RunError
from mlx_pam.training.lock import RunLock
from mlx_pam.training.sweep.run import seconds_left
from mlx_pam.training.sweep.sweep import plan, sweep


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
    assert config.left_out == ["sam-phase-qk", "transformer-phase-qk", "transformer-recall"]


def test_the_folder_may_be_a_text(tmp_path):
    config = settings(tmp_path, out=str(tmp_path / "text"))
    assert sweep(config).status == "finished"
    assert plan(config)[0].folder == tmp_path / "text" / "pam-300k-seed-0"


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
        {"variants": "no-such"}, {"seeds": 0}, {"seeds": 10**9}, {"tokens": 4095},
        {"out": 3}, {"jobs": 0}, {"eval_every": 0},
        {"search": "fast"}, {"search": "2.0"}, {"search": ","}, {"search_tokens": 9000},
        {"search": "1e-3", "search_tokens": 1}, {"search": "1e-3", "rates": "a.json"},
        {"recipe": "canonical", "rates": "a.json"}, {"data": " "}, {"backend": "jax"},
        {"models": "sam,transformer", "variants": "recall,phase-qk"},
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


def test_two_sweeps_in_a_folder_are_refused(tmp_path):
    config = settings(tmp_path)
    with RunLock(config.out) as lock:
        lock.take()
        with pytest.raises(RunError, match="no other run is at work"):
            sweep(config, Told())


def test_time_left_is_in_proportion_to_steps_and_parameters(tmp_path):
    runs = plan(settings(tmp_path, scales="300k,3m"))
    assert seconds_left(runs, 1) is None
    small, large = runs
    small.step, small.seconds_per_step, small.state = 1, 2.0, "running"
    expected = 2 * 2.0 + 3 * 2.0 * large.parameters / small.parameters
    assert seconds_left(runs, 1) == pytest.approx(expected)
    assert seconds_left(runs, 2) == pytest.approx(expected / 2)
