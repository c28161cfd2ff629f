"""A sweep in a folder that is not as it left it, and settings at the edge of what it takes."""

from __future__ import annotations

import errno
import json
import os

import pytest
from scripted_sweep import scripted as scripted
from scripted_sweep import settings as plain_settings
from written_log import end, evaluation, start, step, steps, write_log

from mlx_pam import durable
from mlx_pam.config import TrainConfig
from mlx_pam.errors import ConfigError, RunError
from mlx_pam.training.sweep.run import Run
from mlx_pam.training.sweep.sweep import plan, sweep


def settings(folder, **changes):
    return plain_settings(folder, **{"out": folder / "a b é"} | changes)


def test_a_sweep_that_tells_nothing_comes_to_its_end(tmp_path, capsys):
    result = sweep(settings(tmp_path))
    assert (result.status, [run.state for run in result.runs]) == ("finished", ["finished"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "change", [{"lr": None}, {"lr": "fast"}, {"lr": 2}, {"lr_origin": 1}, {"name": []}]
)
def test_a_recorded_run_that_cannot_be_is_an_error_of_the_record(tmp_path, change):
    config = settings(tmp_path)
    sweep(config)
    path = config.out / "sweep.json"
    record = json.loads(path.read_text())
    record["runs"][0] |= change
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"^out must be the folder of a sweep.*sweep\.json"):
        plan(config)
    del record["runs"][0]["lr"]
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"sweep\.json"):
        plan(config)


@pytest.mark.parametrize("entries", ["null", "1", "[]", '"300k"'])
def test_found_rates_that_are_no_table_are_an_error_by_name(tmp_path, entries):
    config = settings(tmp_path, search="1e-3")
    config.out.mkdir()
    (config.out / "learning_rates.json").write_text(f'{{"pam": {entries}}}')
    with pytest.raises(ConfigError, match=r"^pam must be .*learning_rates\.json"):
        plan(config)


def test_a_run_that_no_sweep_began_is_not_taken_for_one(tmp_path):
    """Its learning rate and data may be any."""
    config = settings(tmp_path)
    done = [start(steps=3), *steps(1, 3), evaluation(3), end(3)]
    write_log(config.out / "pam-300k-seed-0", *done)
    with pytest.raises(ConfigError, match=r"seed-0 is a run that sweep\.json does not"):
        plan(config)


@pytest.mark.parametrize("below", ["", "sweep"])
def test_a_file_is_no_folder_of_a_sweep(tmp_path, below):
    (tmp_path / "file").touch()
    config = settings(tmp_path, out=tmp_path / "file" / below)
    for begin in (plan, sweep):
        with pytest.raises(ConfigError, match=r"^out must be a folder.*file"):
            begin(config)


@pytest.mark.parametrize("way", ["pam-300k-seed-0", "pam-300k-seed-0/output.txt/a"])
def test_a_run_whose_folder_cannot_be_written_to_fails_alone(tmp_path, way):
    """A file is where its folder should be, or a folder where what it prints should go."""
    config = settings(tmp_path, models="pam,sam")
    (config.out / way).parent.mkdir(parents=True)
    (config.out / way).touch()
    result = sweep(config)
    assert [run.state for run in result.runs] == ["failed", "finished"]
    assert result.runs[0].error.startswith(f"cannot work in {result.runs[0].folder}: ")


@pytest.mark.parametrize("name", ["sweep.json", "learning_rates.json"])
def test_a_full_disk_is_said_with_the_file_that_cannot_be_written(tmp_path, monkeypatch, name):
    config = settings(tmp_path, search="1e-3")
    write = durable.write_json

    def full(path, record):
        if name in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, record)

    monkeypatch.setattr(durable, "write_json", full)
    with pytest.raises(RunError, match=rf"cannot write .*{name}: No space left.*goes on"):
        sweep(config)
    monkeypatch.undo()
    assert list(config.out.glob(".*saving")) == []


def test_a_log_that_is_taken_back_and_grows_beyond_what_was_read_is_read_anew(tmp_path):
    run = Run(TrainConfig(scale="300k", steps=9, out=tmp_path))
    write_log(tmp_path, start(), *steps(1, 5), {"event": "diverged", "step": 6})
    run.look()
    assert (run.step, run.diverged) == (5, True)
    write_log(tmp_path, start(), *steps(1, 3), start(3, note="x" * 2000), step(4, 2.0))
    run.look()
    assert (run.step, run.loss, run.diverged) == (4, 2.0, False)


def test_lines_of_a_log_that_are_no_records_are_passed_over(tmp_path):
    run = Run(TrainConfig(scale="300k", steps=3, out=tmp_path))
    strange = [
        {"event": "step"}, {"event": "step", "step": 2, "loss": "much"},
        {"event": "evaluation", "step": 2, "loss": None}, {"event": "start", "step": "one"},
        {"event": "step", "step": "two", "loss": 1.0},
    ]  # fmt: skip
    whole = [*steps(1, 3), evaluation(3), end(3)]
    write_log(tmp_path, start(steps=3), *strange, *whole)
    run.look()
    assert run.finished
    assert run.validation_loss == 3.0


def test_each_rate_of_a_search_has_a_folder_of_its_own(tmp_path):
    config = settings(tmp_path, search="1e-3,1.0000001e-3")
    folders = {config.search_run("pam", "300k", rate).run_folder for rate in config.search_rates}
    assert len(folders) == 2
    assert config.to_dict()["search"] == "0.001,0.0010000001"


@pytest.mark.parametrize("name", ["tokens", "search_tokens"])
def test_more_tokens_than_can_be_counted_are_an_error(tmp_path, name):
    with pytest.raises(ConfigError, match=f"^{name} must be below"):
        settings(tmp_path, search="1e-3", **{name: 10**400})
