"""`mlx_pam sweep`, as it is called, with real training of the smallest models."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import small_sweep
from new_process import environment
from scripted_train import replace_training, script
from small_run import assert_same_checkpoint
from small_run import corpus as corpus

from mlx_pam import cli
from mlx_pam.config import SweepConfig, TrainConfig
from mlx_pam.errors import ConfigError
from mlx_pam.training.metrics import read_log
from mlx_pam.training.sweep.run import Run


def words(corpus, out, *more):
    return [
        "sweep", "--models", "pam,transformer", "--scales", "300k", "--data", str(corpus),
        "--tokenizer", "bytes", "--tokens", "256", "--seq-len", "8", "--batch-size", "2",
        "--save-every", "1", "--backend", "mlx", "--out", str(out), *more,
    ]  # fmt: skip


def start(*command):
    return subprocess.Popen(
        [sys.executable, small_sweep.__file__, *command],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_sweep_that_is_killed_goes_on_to_the_same_weights(corpus, tmp_path):
    """With the run that it had begun, which is killed as well."""
    whole = start(*words(corpus, tmp_path / "whole", "--json"))
    out, progress = whole.communicate()
    assert whole.returncode == 0, progress
    result = json.loads(out)
    names = ["pam-300k-seed-0", "transformer-300k-seed-0"]
    assert [(run["name"], run["state"], run["step"]) for run in result["runs"]] == [
        (name, "finished", 16) for name in names
    ]
    assert [line.split()[:2] for line in progress.splitlines()[1:-1]] == [
        [event, name] for name in names for event in ("begun", "finished")
    ]

    broken = tmp_path / "broken"
    killed = start(*words(corpus, broken, "--models", "pam"))
    run = Run(TrainConfig(scale="300k", out=broken / names[0]))
    while run.step < 2 and killed.poll() is None:
        run.look()
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    holder = json.loads((run.folder / ".lock").read_text() or "{}")
    if holder:  # else it had come to its end
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder["process"], signal.SIGKILL)
    run.look()
    again = start(*words(corpus, broken, "--models", "pam"))
    said, errors = again.communicate()
    assert again.returncode == 0, errors
    assert (f"begun     {names[0]} goes on after step" in said) == (not run.finished)
    assert_same_checkpoint(tmp_path / "whole" / names[0], run.folder)


@pytest.fixture
def scripted(monkeypatch):
    replace_training(monkeypatch)


def command(out, *more):
    return ["sweep", "--models", "pam,sam", "--scales", "300k", "--tokens", "12288",
            "--out", str(out), *more]  # fmt: skip


def test_a_dry_run_prints_the_queue_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "sweep"
    assert cli.main(command(out, "--dry-run", "--variants", "phase-qk")) == 0
    heading, left_out, _, columns, _, *rows = capsys.readouterr().out.splitlines()
    assert heading == f"3 runs of 3 steps of 4,096 tokens: 12,288 tokens each, in {out}"
    assert left_out == "left out, as there is no such model: sam-phase-qk"
    assert columns.split() == [
        "run", "state", "parameters", "steps", "tokens", "learning", "rate", "from",
    ]  # fmt: skip
    assert rows[0].split() == [
        "pam-300k-seed-0", "waiting", "4,323,660", "3", "12,288", "0.008",
        *["searched:", "4", "rates,", "409,600", "tokens", "of", "wikipedia", "each"],
    ]  # fmt: skip
    assert [row.split()[0] for row in rows[1:3]] == ["pam-phase-qk-300k-seed-0", "sam-300k-seed-0"]
    assert cli.main(command(out, "--dry-run", "--search", "1e-3,2e-3", "--json")) == 0
    shown = capsys.readouterr()
    assert (
        "the learning rates of 2 models: for each 2 runs of 1 step, 4,096 tokens, or more"
        in shown.err
    )
    assert shown.err.count("by search") == 2
    assert [run["lr"] for run in json.loads(shown.out)["runs"]] == [None, None]
    assert not out.exists()


def test_what_failed_is_told_at_the_end_with_its_error(tmp_path, capsys, monkeypatch, scripted):
    monkeypatch.setenv("SCRIPT", script(fails=["pam-300k-seed-0"]))
    assert cli.main(command(tmp_path / "sweep")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "failed: 1 of 2 runs are finished"
    assert lines[-2].startswith("failed  pam-300k-seed-0: the disk is full (")
    assert lines[-2].endswith("pam-300k-seed-0/output.txt)")


@pytest.mark.parametrize("way", ["closed", "gone", "gone, as a terminal", "gone, with --json"])
def test_a_reader_of_the_output_that_goes_ends_no_sweep(corpus, tmp_path, way):
    more = ["--json"] if "json" in way else []
    line = [
        sys.executable,
        small_sweep.__file__,
        *words(corpus, tmp_path, "--models", "pam", *more),
    ]
    if way == "closed":
        line = ["sh", "-c", 'exec "$0" "$@" >&-', *line]
    terminal = {"FORCE_COLOR": "1"} if "terminal" in way else {}
    process = subprocess.Popen(
        line, env=environment() | terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    progress, other = process.stdout, process.stderr
    if more:
        progress, other = other, progress
    progress.readline()
    progress.close()
    said = other.read()
    assert process.wait() == 0, said
    assert read_log(tmp_path / "pam-300k-seed-0", "end")[-1]["status"] == "finished"


def test_a_terminal_is_shown_a_table(tmp_path, capsys, monkeypatch, scripted):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(command(tmp_path / "sweep", "--search", "1e-3,2e-3,5e-4")) == 0
    shown = capsys.readouterr().out
    assert "validation perplexity" in shown
    assert "searched  sam 300k: 0.001 of 3 rates" in shown
    assert "search/pam-300k-lr-0.0005" in shown
    assert "runs finished ·" in shown


def test_ctrl_c_ends_a_sweep_with_130_and_its_run_with_a_checkpoint(corpus, tmp_path):
    """The signal goes to the sweep alone, as the runs are in no group of a terminal."""
    process = start(*words(corpus, tmp_path, "--tokens", "160000"))
    run = Run(TrainConfig(scale="300k", out=tmp_path / "pam-300k-seed-0"))
    while run.step < 2 and process.poll() is None:
        run.look()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out.splitlines()[-2:] == [
        "interrupted: 0 of 2 runs are finished", "the same command goes on where this one stopped",
    ]  # fmt: skip
    assert read_log(run.folder, "end")[-1]["status"] == "interrupted"
    assert read_log(run.folder, "checkpoint")


# The rates that a search has found, in `mlx_pam train`


@pytest.fixture
def rates(tmp_path, scripted, capsys):
    assert cli.main(command(tmp_path / "sweep", "--search", "5e-4,1e-3,2e-3")) == 0
    capsys.readouterr()
    return tmp_path / "sweep" / "learning_rates.json"


def test_train_takes_the_rates_of_a_search(rates, capsys):
    config = TrainConfig(model="sam", scale="300k", rates=rates)
    recipe = config.resolved_recipe(100)
    assert recipe.peak_lr == 1e-3
    assert recipe.lr_origin == "searched: 3 rates, 4,096 tokens of sample each"
    assert (
        TrainConfig(model="sam", scale="300k", rates=rates, lr=0.5).resolved_recipe(100).peak_lr
        == 0.5
    )
    again = SweepConfig(tokens=4096, out=rates.parent / "other", rates=rates, models="sam",
                        scales="300k")  # fmt: skip
    assert next(again.runs()).resolved_recipe(1).peak_lr == 1e-3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "No such file"), ("{", "not JSON"), ("[]", "no table"), ("{}", "none"),
        ('{"pam": {"1m": {}}}', "pam 1m"), ('{"pam": {"300k": 1}}', "TypeError"),
        ('{"pam": {"300k": {"rate": 0, "origin": "searched"}}}', "rate must be"),
        ('{"pam": {"300k": {"rate": 0.1}}}', "origin"),
        ('{"pam": {"300k": {"rate": 0.1, "origin": "searched"}}}', "tried"),
    ],
)  # fmt: skip
def test_a_file_of_rates_that_has_not_the_rate_is_an_error_by_name(tmp_path, text, error):
    path = tmp_path / "rates.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^rates must .*rates\.json.*{error}"):
        TrainConfig(scale="300k", rates=path).resolved_recipe(10)
