"""`mlx_pam scaling`, as it is called: tables, sentences, JSON, pictures, errors."""

from __future__ import annotations

import json
import sys

import pytest
from scaling_runs import SCALES, power_law, write_run, write_sweep

from mlx_pam import cli

LAWS = {"pam": power_law(-0.15, 2e9, 2.2), "sam": power_law(-0.12, 2e9, 2.2)}
FEW = ["--resamples", "200"]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_sweep(tmp_path / "sweep", LAWS, seed=seed, late=0.01)
    write_run(tmp_path / "sweep", "sam", "5m", 3.0, seed=9, ended="stopped")
    return tmp_path / "sweep"


def strict(text: str):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_tables_and_sentences(sweep, capsys):
    assert cli.main(["scaling", "sweep", *FEW]) == 0
    printed = capsys.readouterr()
    assert "note: sam-5m-9 is left out: stopped" in printed.err
    rows = [line.split() for line in printed.out.splitlines()]
    assert ["pam", "5m", "2", "4.99", "M", "563", "k"] in [row[:7] for row in rows]
    slopes = [float(row[3]) for row in rows if row[:3] == ["total", "pam", "loss"]]
    assert slopes == [pytest.approx(-0.15, abs=1e-3)]
    (meet,) = (row for row in rows if row[:4] == ["total", "pam,", "sam", "loss"])
    assert (float(meet[4]), meet[5]) == (pytest.approx(2, abs=0.05), "G")
    assert "pam overtakes sam at 2" in printed.out


def test_json_is_strict_and_whole(sweep, capsys):
    assert cli.main(["scaling", "sweep", "--json", "--seed", "3", *FEW]) == 0
    found = strict(capsys.readouterr().out)
    assert (found["window"], found["resamples"], found["seed"]) == (0.2, 200, 3)
    assert len(found["points"]) == 20
    assert found["left_out"] == {"sam-5m-9": "stopped"}
    (crossing,) = (c for c in found["crossings"] if (c["quantity"], c["size"]) == ("loss", "total"))
    assert crossing["parameters"] == pytest.approx(2e9, rel=0.02)
    assert set(crossing["without"]) == set(SCALES)
    assert {floor["family"] for floor in found["floors"]} == {"pam", "sam"}
    assert len(found["sentences"]) >= 3


def test_what_is_beyond_all_bounds_is_null(capsys):
    assert cli.main(["scaling", "--published", "--json"]) == 0
    found = strict(capsys.readouterr().out)
    assert found["crossings"][0]["interval"]["high"] is None
    assert found["crossings"][0]["interval"]["low"] > 0


def test_the_same_seed_says_the_same(sweep, capsys):
    said = []
    for seed in ("1", "1", "2"):
        cli.main(["scaling", "sweep", "--json", "--seed", seed, *FEW])
        said.append(strict(capsys.readouterr().out)["fits"])
    assert said[0] == said[1] != said[2]


def test_a_wider_window_takes_more_in(sweep, capsys):
    means = []
    for window in ("0.2", "1"):
        cli.main(["scaling", "sweep", "--json", "--window", window, *FEW])
        means.append(strict(capsys.readouterr().out)["points"][0]["loss"])
    assert [mean["count"] for mean in means] == [2, 10]
    assert means[0]["mean"] < means[1]["mean"]


def test_pictures_are_drawn(sweep, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["scaling", "sweep", "--out", "new/all.SVG", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["new/all.SVG", "new/all-curves.SVG"]
    drawn = (tmp_path / "new/all.SVG").read_text("utf-8")
    assert all(word in drawn for word in ("Perplexity", "slope −0.150", "meet at 2"))
    curves = (tmp_path / "new/all-curves.SVG").read_text("utf-8")
    assert all(f">{word}<" in curves for word in ("pam", "sam", *SCALES))
    assert cli.main(["scaling", "--published", "--json", "--out", "p.png", *FEW]) == 0
    printed = capsys.readouterr()
    strict(printed.out)
    assert printed.err == "p.png\n"
    assert not (tmp_path / "p-curves.png").exists()


def test_one_scale_is_said_and_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    write_run(tmp_path / "one", "pam", "5m", 3.0)
    out = tmp_path / "one.png"
    assert cli.main(["scaling", str(tmp_path / "one"), "--out", str(out), *FEW]) == 0
    assert "pam has one size, 5m: a line needs two." in capsys.readouterr().out
    assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "DIR must be a folder of runs, or else --published, got 'none'"),
        (["sweep", "--published"], "DIR must be a folder of runs, or else --published, got 'both'"),
        (["nowhere"], "DIR must be a folder that exists, got 'nowhere'"),
        (["."], "DIR must be a folder with finished runs directly in it, got ."),
        (["sweep", "--window", "0"], "--window must be a number > 0 and <= 1, got 0"),
        (["sweep", "--resamples", "9"], "--resamples must be a whole number >= 100"),
        (["sweep", "--seed", "-1"], "--seed must be a whole number >= 0"),
        (["sweep", "--out", "x.gif"], "--out must be a .png, .svg or .pdf file, got 'x.gif'"),
        (["sweep", "--out", "/dev/null/x.png"], "out must be a file that can be written"),
    ],
)
def test_wrong_words_are_a_clean_error(sweep, capsys, words, message):
    pytest.importorskip("matplotlib")
    assert cli.main(["scaling", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_only_pictures_are_missing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    assert cli.main(["scaling", "--published", "--out", "x.png"]) == 2
    message = "error: --out needs the package matplotlib: pip install matplotlib\n"
    assert capsys.readouterr().err == message
    assert cli.main(["scaling", "--published", *FEW]) == 0
