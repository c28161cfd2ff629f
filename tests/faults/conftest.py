"""The corpus that is trained on here, the run that nothing happens to, and the tally of faults."""

from __future__ import annotations

from pathlib import Path

import life
import pytest
import tally as tallies
from small_run import corpus as corpus


# a process that imports PyTorch takes seconds: by default kills alone meet with both backends
@pytest.fixture(
    scope="session", params=["mlx", pytest.param("torch", marks=[life.TORCH, pytest.mark.slow])]
)
def undisturbed(request, corpus, tmp_path_factory) -> life.Run:
    """A run, in each backend, that nothing happens to; others must come to its end."""
    run = life.Run(tmp_path_factory.mktemp("undisturbed") / "run", corpus, request.param)
    done = run.begin().wait()
    assert done == 0, run.said()
    return run


@pytest.fixture
def tally(request) -> tallies.Tally:
    """What this test counts, written down where `tally.py` says."""
    return tallies.Tally()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "run"
