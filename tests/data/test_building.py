"""A folder is whole or not there, and only what nobody writes any more is swept."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlx_pam.data import building as module
from mlx_pam.data.building import DAY, MINUTE, PREFIX, in_one_step, sweep

WRITER = """
import sys
from pathlib import Path
from mlx_pam.data.building import in_one_step
with in_one_step(Path(sys.argv[1]), lambda: False) as building:
    (building / "half.bin").write_bytes(b"half")
    print(building, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process in the middle of its work; its first line of output is its folder."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "wanted")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        yield process
        process.kill()


def age(folder: Path, seconds: float) -> None:
    for path in [*folder.iterdir(), folder]:
        os.utime(path, (time.time() - seconds,) * 2)


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    building = Path(writer.stdout.readline().strip())
    age(building, 2 * DAY)
    sweep(tmp_path)
    assert (building / "half.bin").exists()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert (building / "half.bin").exists()
    age(building, MINUTE / 2)
    sweep(tmp_path)
    assert building.exists(), "its writer may only just begin"
    age(building, 2 * MINUTE)
    with in_one_step(tmp_path / "other", lambda: False) as own:
        assert own.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]


def test_without_locks_a_day_of_silence_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    for name, seconds in (("old", 2 * DAY), ("new", DAY / 2)):
        (tmp_path / f"{PREFIX}{name}").mkdir()
        age(tmp_path / f"{PREFIX}{name}", seconds)
    with in_one_step(tmp_path / "wanted", lambda: False) as building:
        building.joinpath("a").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{PREFIX}new", "wanted"]


def test_other_folders_are_never_swept(tmp_path: Path) -> None:
    (tmp_path / "0123").mkdir()
    age(tmp_path / "0123", 9 * DAY)
    sweep(tmp_path)
    assert (tmp_path / "0123").exists()
