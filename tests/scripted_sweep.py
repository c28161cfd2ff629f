"""A sweep over scripted training, and what it tells its user; imported by tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripted_train import replace_training

from mlx_pam.config import SweepConfig
from mlx_pam.training.sweep import children
from mlx_pam.training.sweep.run import Run, State


class Told:
    """What a sweep tells its user: the names of the runs that began and ended."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ends: list[tuple[str, State]] = []
        self.said: list[str] = []
        self.most = 0
        """Runs at once."""

    def say(self, text: str) -> None:
        self.said.append(text)

    def begun(self, run: Run) -> None:
        self.began.append(run.name)

    def ended(self, run: Run) -> None:
        self.ends.append((run.name, run.state))

    def renew(self, queue: list[Run]) -> None:
        self.most = max(self.most, sum(run.state == "running" for run in queue))


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the training its script, inside this process."""
    replace_training(monkeypatch)


@pytest.fixture
def processes(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own, as they are without `scripted`."""
    monkeypatch.setattr(children, "subprocess", subprocess)


def settings(folder: Path, **changes: Any) -> SweepConfig:
    return SweepConfig(
        **{"models": "pam", "scales": "300k", "tokens": 4096 * 3, "out": folder / "sweep"} | changes
    )


def searched(folder: Path, **changes: Any) -> SweepConfig:
    return settings(folder, search="1e-3,2e-3", search_tokens=8192, **changes)
