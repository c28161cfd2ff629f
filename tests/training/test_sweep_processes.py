"""The processes of a sweep: they fail, share the cores, are asked to leave and waited for."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest
from scripted_sweep import Told, settings
from scripted_sweep import processes as processes
from scripted_sweep import scripted as scripted
from scripted_train import script

from mlx_pam.training.lock import RunLock, is_held
from mlx_pam.training.metrics import read_log
from mlx_pam.training.sweep import children
from mlx_pam.training.sweep.run import Run
from mlx_pam.training.sweep.sweep import plan, sweep


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


def test_ctrl_c_is_passed_on_once_and_the_sweep_goes_on_later(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("SCRIPT", script(holds=2))
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


def test_an_error_of_the_sweep_lets_its_runs_save(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("SCRIPT", script(holds=1))
    config = settings(tmp_path, models="pam,sam", tokens=4096 * 200, jobs=2)

    class Breaks(Told):
        def renew(self, queue):
            if all(run.step for run in queue):
                raise OSError("no terminal")

    with pytest.raises(OSError, match="no terminal"):
        sweep(config, Breaks())
    for run in plan(config):
        assert read_log(run.folder, "end")[-1]["status"] == "interrupted"


def test_a_log_that_cannot_be_read_fails_its_run_alone(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("SCRIPT", script())
    look = Run.look

    def broken(run):
        if run.config.model == "pam" and run.state == "running":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        look(run)

    monkeypatch.setattr(Run, "look", broken)
    result = sweep(settings(tmp_path, models="pam,sam"), Told())
    assert [run.state for run in result.runs] == ["failed", "finished"]
    assert "Input/output error" in result.runs[0].error
    assert len(read_log(result.runs[0].folder, "end")) == 1  # it was not disturbed


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
