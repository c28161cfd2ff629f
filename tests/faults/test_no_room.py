"""A disk that is full at any write leaves whole checkpoints and one line that says so."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import life
import pytest
from small_run import assert_same_run, run
from write_points import Disk

from mlx_pam import checkpoint
from mlx_pam.errors import ConfigError, MlxPamError
from mlx_pam.training.metrics import LOG

SETTINGS = {"steps": 3, "save_every": 1, "keep": 1, "eval_every": 1}


def begin(corpus: Path, out: Path, backend: str) -> None:
    run(corpus, out, backend=backend, resume=(out / LOG).exists(), **SETTINGS)


@pytest.mark.parametrize("points", [6, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lasting", [False, True])
def test_no_room_at_any_write(backend, corpus, tmp_path, tally, lasting, points):
    """Some writes of a run, or every one: what it makes, writes, syncs, renames and cuts."""
    whole = tmp_path / "whole"
    with Disk(whole).watched() as counted:
        begin(corpus, whole, backend.name)
    assert counted.writes > 60
    numbers = range(1, counted.writes + 1)
    for number in life.random_moments("full disks").sample(numbers, points or len(numbers)):
        out = tmp_path / str(number)
        with Disk(out, number, lasting=lasting).watched() as disk:
            with pytest.raises(MlxPamError, match="No space left on device") as error:
                begin(corpus, out, backend.name)
            assert disk.writes >= number
        assert "\n" not in str(error.value)
        for folder in checkpoint.step_folders(out):
            checkpoint.load(folder, optimizer=True)
        begin(corpus, out, backend.name)
        assert_same_run(whole, out)
        tally.add("said and gone on with", repeated=None)
    tally.write(f"no room at one write{' and all later ones' if lasting else ''}", backend.name)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((100, 3_000_000), id="few"),
        pytest.param(range(100, 6_400_000, 400_000), marks=pytest.mark.slow, id="many"),
    ],
)
def test_files_that_may_not_grow(undisturbed, tmp_path, tally, sizes):
    """The system's own limit cuts each file at so many bytes, in the middle of a write."""
    for size in sizes:
        run = life.Run(tmp_path / str(size), undisturbed.corpus, undisturbed.backend)
        limited = run.begin(
            preexec_fn=lambda size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        said = limited.communicate()[1].decode()
        assert limited.returncode != 0
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert "File too large" in said
        run.require_whole()
        assert run.begin().wait() == 0, run.said()
        run.require_same(undisturbed)
        tally.add("said and gone on with", repeated=None)
    tally.write("size of files limited", undisturbed.backend)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_may_not_be_written_to(corpus, tmp_path, resume):
    out = tmp_path / "run"
    if resume:
        run(corpus, out, steps=2, stop_after=1)
    target = out if resume else tmp_path
    target.chmod(0o555)
    try:
        if os.access(target, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(
            ConfigError, match=r"out must be a folder that can be written to.*denied"
        ):
            run(corpus, out, steps=2, resume=resume)
    finally:
        target.chmod(0o755)


def test_a_folder_below_a_file_cannot_be_made(corpus):
    with pytest.raises(ConfigError, match=r"out must be a folder that can be written to.*give an"):
        run(corpus, corpus / "run")
