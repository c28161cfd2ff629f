"""The corpus that is trained on here, the run that nothing happens to, and the tally of faults."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import life
import pytest
import tally as tallies
from small_run import corpus as corpus

ABSENT = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@pytest.fixture(scope="session", params=["mlx", pytest.param("torch", marks=ABSENT)])
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
