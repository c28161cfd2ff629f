"""`mlx_pam runs` and `mlx_pam plot`, as they are called."""

from __future__ import annotations

import json
import sys

import pytest
from written_log import TIME, end, evaluation, start, steps, write_log

from mlx_pam import cli
from mlx_pam.analysis import runs


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in, two hours after the logs were begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs.time, "time", lambda: TIME + 7300.0)
    return tmp_path


@pytest.fixture
def finished(here):
    log = [start(steps=1500), *steps(1, 5), evaluation(5, 2.0), end(1500)]
    return write_log(here / "runs" / "first", *log)


def test_runs_are_listed(finished, capsys):
    write_log(finished.parent / "second")
    assert cli.main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == [
        "run", "state", "model", "data", "parameters", "step", "perplexity", "best", "tokens/s",
        "age",
    ]  # fmt: skip
    assert lines[2] == [
        "first", "finished", "sam", "10m", "a-text", "9,876,543", "1,500/1,500", "7.39", "7.39",
        "100", "2", "h",
    ]  # fmt: skip
    assert lines[3][:2] == ["second", "unreadable"]


@pytest.mark.parametrize("width", [60, 90, 140])
def test_a_narrow_terminal_goes_without_some_columns(finished, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    cli.main(["runs", "runs"])
    row = capsys.readouterr().out.splitlines()[3]
    assert "first" in row
    assert "1,500/1,500" in row
    assert ("9,876,543" in row) == (width == 140)


def test_the_list_as_json_is_strict_json(finished, capsys):
    write_log(finished.parent / "nan", start(), evaluation(1, float("inf")))
    assert cli.main(["runs", str(finished.parent), "--json"]) == 0

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert {run["name"]: run["validation_perplexity"] for run in found} == {
        "first": pytest.approx(7.389, abs=1e-3),
        "nan": "inf",
    }


def test_no_runs_are_no_error_but_no_folder_is(here, capsys):
    assert cli.main(["runs"]) == 0
    assert "there is no run in runs" in capsys.readouterr().out
    assert cli.main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.main(["runs", "nowhere"]) == 2
    assert "FOLDER must be a folder that exists, got 'nowhere'" in capsys.readouterr().err


def test_a_plot_goes_to_the_run_or_where_it_is_told(finished, here, capsys):
    pytest.importorskip("matplotlib")
    second = write_log(here / "runs" / "second", start(), *steps(1, 3))
    assert cli.main(["plot", "runs/first"]) == 0
    assert capsys.readouterr().out == "runs/first/plot.png\n"
    assert cli.main(["plot", "runs/first", "runs/second/"]) == 0
    assert capsys.readouterr().out == "plot.png\n"
    words = ["runs/first", "--x", "tokens", str(second), "--smooth", "--out", "new/both.SVG"]
    assert cli.main(["plot", *words]) == 0
    drawn = (here / "new" / "both.SVG").read_text("utf-8")
    assert all(f">{name}<" in drawn for name in ("first", "second", "tokens"))


def test_runs_of_one_name_are_told_apart_by_their_folders(here):
    pytest.importorskip("matplotlib")
    for folder in ("a", "b"):
        write_log(here / folder / "run", start(), *steps(1, 3))
    assert cli.main(["plot", "a/run", "b/run", "./a/run", "--out", "x.svg"]) == 0
    drawn = (here / "x.svg").read_text("utf-8")
    assert [drawn.count(f">{name}<") for name in ("a/run", "b/run", "run")] == [1, 1, 0]


def test_a_single_run_has_its_facts_above_it(finished, here):
    pytest.importorskip("matplotlib")
    cli.main(["plot", "runs/first", "--out", "x.svg"])
    facts = "sam 10m  ·  9,876,543 parameters  ·  a-text  ·  step 1,500 of 1,500  ·  "
    facts += "best validation perplexity 7.39  ·  finished"
    drawn = (here / "x.svg").read_text("utf-8")
    assert " ".join(facts.split()) in " ".join(drawn.split())


def test_what_the_blocks_did_is_drawn_into_the_run(here, capsys):
    pytest.importorskip("matplotlib")
    told = {"layers.0.rms": 1.0, "layers.0.grad_norm": 0.1, "head.grad_norm": 0.2}
    looked = [{"event": "diagnostics", "step": i, "tokens": 64 * i, **told} for i in (2, 4)]
    write_log(here / "runs" / "deep", start(), *steps(1, 4), *looked)
    assert cli.main(["plot", "runs/deep", "--diagnostics"]) == 0
    assert capsys.readouterr().out == "runs/deep/diagnostics.png\n"
    words = ["--diagnostics", "--x", "tokens", "--smooth", "--out", "x.svg"]
    assert cli.main(["plot", "runs/deep", *words]) == 0
    drawn = (here / "x.svg").read_text("utf-8")
    expected = ("deep", "Residual stream", "Gradient norm", "block", "tokens")
    assert all(f">{text}<" in drawn for text in expected)


def test_what_has_no_steps_is_left_out_and_named(finished, here, capsys):
    pytest.importorskip("matplotlib")
    write_log(here / "runs" / "new", start())
    (here / "runs" / "foreign").mkdir()
    assert cli.main(["plot", "runs/new", "runs/foreign", "runs/first"]) == 0
    printed = capsys.readouterr()
    assert "note: runs/new, which has no step yet, is left out" in printed.err
    assert "note: runs/foreign, whose log.jsonl cannot be read (No such file" in printed.err
    assert cli.main(["plot", "runs/new"]) == 2
    assert "RUNS must be folders of runs with steps, got runs/new" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "RUNS must be one run folder or several, got 'none'"),
        (["runs/first", "--out", "x.gif"], "--out must be a .png, .svg or .pdf file, got 'x.gif'"),
        (["runs/first", "--x", "epoch"], "--x must be one of step, tokens, time, got 'epoch'"),
        (["runs/first", "--diagnostics"], "diagnostics must be in the log of first, got none"),
        (["a", "b", "--diagnostics"], "RUNS must be one run folder with --diagnostics, got 2"),
        (["runs/first", "-o", "x.png"], "unexpected word '-o'"),
        (["runs/first", "--out", "/dev/null/x.png"], "out must be a file that can be written"),
    ],
)
def test_wrong_words_are_a_clean_error(finished, capsys, words, message):
    pytest.importorskip("matplotlib")
    assert cli.main(["plot", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_the_command_that_installs_it_is_given(finished, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    assert cli.main(["plot", "runs/first"]) == 2
    assert capsys.readouterr().err == (
        "error: plot needs the package matplotlib: pip install matplotlib\n"
    )
