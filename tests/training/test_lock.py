"""A run folder belongs to one run at a time, and a lock is never in the way for nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
from pathlib import Path

import pytest
from small_run import run

from mlx_pam.errors import ConfigError, RunError
from mlx_pam.training.lock import LOCK, RunLock


def test_a_folder_is_held_until_the_end_and_then_free(tmp_path):
    with RunLock(tmp_path) as first:
        first.take()
        record = json.loads((tmp_path / LOCK).read_bytes())
        assert (record["process"], record["host"]) == (os.getpid(), platform.node())
        with RunLock(tmp_path) as second, pytest.raises(RunError) as error:
            second.take()
        for words in (f"got {tmp_path}", f"process {os.getpid()} on {platform.node()}, since "):
            assert words in str(error.value)
        with RunLock(tmp_path) as third, pytest.raises(RunError):
            third.take()  # the second one's error let nothing go
    assert (tmp_path / LOCK).read_bytes() == b""
    with RunLock(tmp_path) as again:
        again.take()


def test_a_run_that_fails_lets_its_folder_go(corpus, tmp_path, monkeypatch):
    from mlx_pam.training.trainer import Trainer

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", lambda self: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(corpus, tmp_path)
    run(corpus, tmp_path, steps=1, overwrite=True)


@pytest.mark.parametrize("record", [b"", b"\xff\x00", b"{}", b'{"process": 1', b"[1, 2]"])
def test_a_record_that_says_nothing_is_another_process(tmp_path, record):
    with RunLock(tmp_path) as first:
        first.take()
        (tmp_path / LOCK).write_bytes(record)
        with RunLock(tmp_path) as second, pytest.raises(RunError, match="where another process is"):
            second.take()


def test_what_is_left_of_a_lock_is_no_obstacle(tmp_path):
    (tmp_path / LOCK).write_bytes(b'{"process": 1, "host": "here", "since": "now"}' * 9)
    with RunLock(tmp_path) as lock:
        lock.take()
        assert json.loads((tmp_path / LOCK).read_bytes())["process"] == os.getpid()


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path):
    out = tmp_path / "runs" / "out"
    with RunLock(out) as lock:
        lock.take()
        assert out.is_dir()
    assert not list(tmp_path.iterdir())
    out.mkdir(parents=True)
    with RunLock(out) as lock:
        lock.take()
    assert out.is_dir()  # it was there before
    with RunLock(tmp_path / "new") as lock:
        lock.take()
        (tmp_path / "new" / "file").touch()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [LOCK, "file"]


def test_a_lock_that_was_removed_under_it_is_taken_anew(tmp_path, monkeypatch):
    """Between opening and locking, as a run that ends in a folder that it made may do."""
    flock, removed = fcntl.flock, []

    def overtaken(file, how):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with RunLock(tmp_path) as lock:
        lock.take()
        with RunLock(tmp_path) as second, pytest.raises(RunError):
            second.take()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_network_folder_without_locks_is_used_and_that_is_said(
    corpus, tmp_path, monkeypatch, capsys, code
):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert run(corpus, tmp_path, steps=1).status == "finished"
    printed = capsys.readouterr().out
    assert f"note: {tmp_path} cannot be locked ({os.strerror(code)}): see to it that no" in printed


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("mkdir", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, read_only)
            with (
                RunLock(tmp_path / "run") as lock,
                pytest.raises(ConfigError, match=r"got .*/run: Read-only file system: give an"),
            ):
                lock.take()


@pytest.mark.parametrize("below", ["", "run"])
def test_what_stands_where_the_folder_should_be_is_named(tmp_path, below):
    (tmp_path / "link").symlink_to("disk that is not mounted")
    (tmp_path / "file").touch()
    for name, what in (
        ("link", "is a link to disk that is not mounted, which does not exist"),
        ("file", "is a file"),
    ):
        message = f"{tmp_path / name} {what}: give another --out"
        with (
            RunLock(tmp_path / name / below) as lock,
            pytest.raises(ConfigError, match=message),
        ):
            lock.take()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
