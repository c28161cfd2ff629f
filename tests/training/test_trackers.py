"""Trackers are told what the log is told: each step once, and none of them can end a run."""

from __future__ import annotations

import functools
import json
import sqlite3
import sys
from typing import get_args

import pytest
from small_run import TINY, run, small

from mlx_pam import checkpoint
from mlx_pam.config.training import Tracker
from mlx_pam.errors import ConfigError
from mlx_pam.training import trackers
from mlx_pam.training.metrics import read_log
from mlx_pam.training.plan import make_plan
from mlx_pam.training.tracked_log import open_tracked_log
from mlx_pam.training.trackers import TrackedRun
from mlx_pam.training.trainer import Trainer

METRICS = "SELECT step, metrics FROM metrics ORDER BY id"


class Scripted:
    """A tracker that keeps what it is told, in all sessions together."""

    rewinds = False
    where = "in the test"

    def __init__(self, run: TrackedRun) -> None:
        self.begun.append(run)

    def log(self, step: int, numbers: dict[str, float], texts: dict[str, str]) -> None:
        self.told.append((step, numbers | texts))

    def flush(self) -> None:
        self.flushed.append(len(self.told))

    def close(self, failed: bool) -> None:
        self.closed.append(failed)

    @classmethod
    def values(cls, name: str) -> list[tuple[int, float | str]]:
        """(step, value) of every time that it was told of `name`."""
        return [(step, values[name]) for step, values in cls.told if name in values]

    @classmethod
    def steps(cls, name: str) -> list[int]:
        return [step for step, _ in cls.values(name)]


class Rewinding(Scripted):
    rewinds = True


class Failing(Scripted):
    """Its disk is full after two records."""

    def log(self, step: int, numbers: dict[str, float], texts: dict[str, str]) -> None:
        super().log(step, numbers, texts)
        if len(self.told) > 2:
            raise OSError("no space\nleft")


class Unable(Scripted):
    def __init__(self, run: TrackedRun) -> None:
        raise ConnectionError("no network")


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """`scripted(name, kind)` puts a tracker under this name, and a package that is found."""

    def put(name: str, kind: type[Scripted] = Scripted) -> type[Scripted]:
        packages = tmp_path / "packages"
        packages.mkdir(exist_ok=True)
        (packages / f"{name}.py").touch()
        monkeypatch.syspath_prepend(packages)
        monkeypatch.delitem(sys.modules, name, raising=False)
        tracker = type(name, (kind,), {key: [] for key in ("begun", "told", "flushed", "closed")})
        monkeypatch.setitem(trackers.TRACKERS, name, tracker)
        return tracker

    return put


@pytest.fixture
def power_cut(monkeypatch):
    """`power_cut(step)` ends the next run as this step begins."""

    def at(step: int) -> None:
        train_step = Trainer.train_step

        def cut(self):
            if self.step + 1 == step:
                monkeypatch.setattr(Trainer, "train_step", train_step)
                raise RuntimeError("the power is cut")
            return train_step(self)

        monkeypatch.setattr(Trainer, "train_step", cut)

    return at


def cut_and_resume(corpus, out, power_cut, **changes) -> None:
    """A run of 8 steps that breaks off in step 6, the save of step 5 cut, and resumes from 4."""
    power_cut(6)
    settings = {"steps": 8, "save_every": 4, "eval_every": 5} | changes
    with pytest.raises(RuntimeError, match="power"):
        run(corpus, out, **settings)
    (out / "step-00000005" / checkpoint.COMPLETE).unlink()
    run(corpus, out, resume=True, **settings)


def test_a_tracker_is_told_what_the_log_is_told(corpus, tmp_path, scripted):
    tracker = scripted("wandb")
    out = tmp_path / "out"
    run(corpus, out, steps=4, eval_every=2, sample_every=4, track=("wandb", "wandb"))
    for event, group in (("step", "train"), ("evaluation", "validation")):
        records = read_log(out, event)
        for key in ("loss", "perplexity"):
            logged = [(record["step"], record[key]) for record in records]
            assert tracker.values(f"{group}/{key}") == logged
    (sample,) = read_log(out, "sample")
    assert tracker.values("sample/text") == [(4, sample["prompt"] + sample["text"])]
    assert {key for _, values in tracker.told for key in values} == {
        "train/tokens", "train/loss", "train/perplexity", "train/lr", "train/grad_norm",
        "train/tokens_per_s", "train/peak_memory", "train/elapsed", "validation/loss",
        "validation/perplexity", "sample/repetition_3", "sample/repetition_4",
        "sample/unique_ratio", "sample/text",
    }  # fmt: skip
    (begun,) = tracker.begun
    assert (begun.folder, begun.resumed, begun.config["lr"]) == (out, None, 1e-2)
    assert begun.config["plan"]["parameters"] > 0
    assert tracker.closed == [False]


def test_a_tracker_is_told_of_every_block(corpus, tmp_path, scripted):
    tracker = scripted("wandb")
    run(corpus, tmp_path, steps=4, diagnostics_every=2, track=("wandb",))
    records = read_log(tmp_path, "diagnostics")
    assert [record["step"] for record in records] == [2, 4]
    for name in records[0].keys() - {"event", "step", "tokens", "time"}:
        logged = [(record["step"], record[name]) for record in records]
        assert tracker.values(f"diagnostics/{name}") == logged


def test_nothing_is_told_twice_when_a_run_goes_on_from_a_checkpoint(
    corpus, tmp_path, scripted, power_cut, capsys
):
    tracker = scripted("wandb")
    cut_and_resume(corpus, tmp_path / "out", power_cut, track=("wandb",))
    assert tracker.steps("train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tracker.steps("validation/loss") == [5, 8]
    assert "wandb has the steps to 5" in capsys.readouterr().out
    first, second = tracker.begun
    assert (first.resumed, second.resumed) == (None, 4)
    assert first.id == second.id
    assert tracker.closed == [True, False]


def test_an_event_that_the_cut_prevented_is_told_when_it_comes(
    corpus, tmp_path, scripted, power_cut
):
    tracker = scripted("wandb")
    out, settings = tmp_path / "out", {"steps": 8, "save_every": 4, "track": ("wandb",)}
    power_cut(6)
    with pytest.raises(RuntimeError, match="power"):
        run(corpus, out, **settings)
    run(corpus, out, resume=True, eval_every=5, **settings)
    assert tracker.steps("train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tracker.steps("validation/loss") == [5, 8]


def test_what_a_tracker_was_told_is_known_after_a_session_without_it(
    corpus, tmp_path, scripted, power_cut
):
    tracker = scripted("wandb")
    out, settings = tmp_path / "out", {"steps": 8, "save_every": 2}
    power_cut(6)
    with pytest.raises(RuntimeError, match="power"):
        run(corpus, out, track=("wandb",), **settings)
    (out / "step-00000004").rename(tmp_path / "lost")
    run(corpus, out, resume=True, stop_after=3, **settings)  # cuts the log after step 2
    run(corpus, out, resume=True, track=("wandb",), **settings)
    assert tracker.steps("train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_tracker_that_rewinds_is_told_again_what_it_forgets(
    corpus, tmp_path, scripted, power_cut
):
    tracker = scripted("tensorboard", Rewinding)
    cut_and_resume(corpus, tmp_path / "out", power_cut, track=("tensorboard",))
    assert tracker.steps("train/loss") == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert [begun.resumed for begun in tracker.begun] == [None, 4]


def test_a_tracker_that_joins_late_is_told_from_there_on(corpus, tmp_path, scripted):
    tracker = scripted("trackio")
    run(corpus, tmp_path / "out", steps=4, stop_after=2)
    run(corpus, tmp_path / "out", steps=4, resume=True, track=("trackio",))
    assert tracker.steps("train/loss") == [3, 4]


def test_numbers_of_the_parts_of_an_event_are_told_by_their_names(corpus, tmp_path, scripted):
    tracker = scripted("wandb")
    plan = make_plan(small(corpus, tmp_path, track=("wandb",)), TINY)
    log = open_tracked_log(plan, None, print)
    log.write("evaluation", {"step": 3, "loss": 2.0, "parts": {"a": 1.5, "b": 2.5, "c": "x"}})
    log.write("note", {"text": "of no step", "count": 1})
    log.close()
    parts = {"validation/loss": 2.0, "validation/parts/a": 1.5, "validation/parts/b": 2.5}
    assert tracker.told == [(3, parts)]


def test_trackers_are_flushed_before_a_checkpoint(corpus, tmp_path, scripted):
    tracker = scripted("tensorboard")
    run(corpus, tmp_path / "out", steps=4, save_every=2, track=("tensorboard",))
    assert tracker.flushed == [2, 4]


def test_a_tracker_that_fails_is_announced_once_and_ends_no_run(corpus, tmp_path, scripted, capsys):
    failing, other = scripted("wandb", Failing), scripted("trackio")
    result = run(corpus, tmp_path / "out", steps=5, save_every=4, track=("wandb", "trackio"))
    assert (result.status, len(read_log(tmp_path / "out", "step"))) == ("finished", 5)
    assert failing.steps("train/loss") == [1, 2, 3]
    assert (failing.flushed, failing.closed) == ([], [])
    assert other.steps("train/loss") == [1, 2, 3, 4, 5]
    printed = capsys.readouterr().out
    assert printed.count("wandb failed (OSError: no space left); the run goes on") == 1


def test_a_tracker_that_cannot_begin_is_an_error_before_the_run(corpus, tmp_path, scripted):
    scripted("wandb", Unable)
    other = scripted("trackio")
    with pytest.raises(ConfigError, match=r"got wandb: ConnectionError: no network; try its off"):
        run(corpus, tmp_path / "out", steps=2, track=("trackio", "wandb"))
    assert other.closed == [True]
    assert run(corpus, tmp_path / "out", steps=2).status == "finished"


@pytest.mark.parametrize("folder", [False, True])
def test_a_tracker_that_is_not_installed_is_an_error_before_all_else(tmp_path, monkeypatch, folder):
    if folder:  # W&B leaves folders of its own name where it works
        (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ConfigError, match=r"got wandb trackio: pip install wandb trackio$"):
        run(tmp_path / "no corpus", tmp_path / "out", track=("wandb", "trackio"))


def test_ctrl_c_leaves_a_tracker_that_takes_long_to_close(corpus, tmp_path, scripted, capsys):
    def hang(self, failed):
        raise KeyboardInterrupt

    slow, other = scripted("wandb"), scripted("trackio")
    slow.close = hang
    assert run(corpus, tmp_path, steps=1, track=("wandb", "trackio")).status == "finished"
    assert "wandb was left before it had everything" in capsys.readouterr().out
    assert other.closed == [False]


def test_the_log_says_how_the_session_ended(corpus, tmp_path):
    run(corpus, tmp_path, steps=4, stop_after=2)
    run(corpus, tmp_path, steps=4, resume=True)
    ends = read_log(tmp_path, "end")
    assert [(end["step"], end["status"]) for end in ends] == [(2, "stopped"), (4, "finished")]
    assert "tracked" not in read_log(tmp_path, "start")[0]


# The real ones, where they are installed


def test_tensorboard_shows_each_step_once_after_a_cut(corpus, tmp_path, power_cut):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    out = tmp_path / "out"
    run(corpus, out, steps=9, track=("tensorboard",))  # another run, which makes room
    for path in out.iterdir():
        if path.name != "tensorboard":
            path.rename(tmp_path / path.name)
    cut_and_resume(corpus, out, power_cut, track=("tensorboard",), sample_every=8)
    found = EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    for event, tag in (("step", "train/loss"), ("evaluation", "validation/loss")):
        shown = [(scalar.step, scalar.value) for scalar in found.Scalars(tag)]
        logged = [(record["step"], record["loss"]) for record in read_log(out, event)]
        assert shown == [(step, pytest.approx(loss)) for step, loss in logged]
    (sample,) = read_log(out, "sample")
    (text,) = found.Tensors("sample/text")
    shown = make_ndarray(text.tensor_proto).item().decode()
    assert shown.replace("\t", "") == "\n".join((sample["prompt"] + sample["text"]).splitlines())
    assert '"lr": 0.01' in make_ndarray(found.Tensors("config")[0].tensor_proto).item().decode()


def test_wandb_works_offline_without_an_account(corpus, tmp_path, power_cut, monkeypatch, capfd):
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    out = tmp_path / "out"
    cut_and_resume(corpus, out, power_cut, track=("wandb",), sample_every=8)
    assert len(list(out.glob("wandb/offline-run-*/*.wandb"))) == 2
    printed = capfd.readouterr()
    assert f"wandb sync {out}/wandb/offline-run-" in printed.out
    assert "wandb failed" not in printed.out
    assert printed.err == ""


@pytest.mark.parametrize("host", ["api.wandb.ai", "wandb.example.org"])
def test_an_account_with_wandb_is_found_where_it_is_kept(tmp_path, monkeypatch, host):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    known = functools.partial(trackers._has_wandb_account, "https://wandb.example.org:8080")
    assert not known()
    (tmp_path / "netrc").write_text("machine example.org login user password x")
    assert not known()
    (tmp_path / "netrc").write_text(f"machine {host} login user password x")
    assert known()
    (tmp_path / "netrc").write_text("not a netrc file")
    assert not known()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert known()


def test_trackio_holds_each_step_once_after_a_cut(corpus, tmp_path, power_cut, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read as it is imported
    pytest.importorskip("trackio")
    out = tmp_path / "out"
    cut_and_resume(corpus, out, power_cut, track=("trackio",), json=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "trackio failed" not in printed.err
    with sqlite3.connect(tmp_path / "trackio" / "mlx_pam.db") as base:
        rows = [(step, json.loads(values)) for step, values in base.execute(METRICS)]
    for event, name in (("step", "train/loss"), ("evaluation", "validation/loss")):
        logged = [(record["step"], record["loss"]) for record in read_log(out, event)]
        assert [(step, values[name]) for step, values in rows if name in values] == logged


def test_the_trackers_that_can_be_asked_for_are_those_there_are():
    assert set(get_args(Tracker)) == set(trackers.TRACKERS)
