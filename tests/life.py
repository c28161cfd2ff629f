"""A run as a user starts it, in a process that may be killed at any moment; imported by tests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_command
from new_process import environment
from small_run import assert_same_run

from mlx_pam import checkpoint
from mlx_pam.training.lock import LOCK
from mlx_pam.training.metrics import LOG, read_log

TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
STEPS = 24
SETTINGS = (
    "--seq-len 8 --batch-size 2 --lr 3e-2 --seed 1 --eval-every 5 "
    "--save-every 1 --keep 2 --sample-every 7 --sample-tokens 3"
)


class Run:
    """The command that trains a tiny model and saves every step; how often it is begun again."""

    def __init__(self, out: Path, corpus: Path, backend: str, steps: int = STEPS) -> None:
        self.out, self.corpus, self.backend, self.steps = out, corpus, backend, steps
        self.output = out.with_name(f"{out.name}.txt")
        self._hold = out.with_name(f"{out.name}.hold")
        self._saved = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, a process makes one step and no other, so that it cannot end meanwhile."""
        self._hold.touch()
        yield
        self._hold.unlink()

    @property
    def words(self) -> list[str]:
        paths = ["--data", str(self.corpus), "--out", str(self.out), "--backend", self.backend]
        return ["train", *paths, "--steps", str(self.steps), *SETTINGS.split()]

    def begin(self, *more: str, **way: object) -> subprocess.Popen[bytes]:
        """Start it, or go on with it, in a process of its own."""
        resume = ["--resume"] if (self.out / LOG).exists() else []
        command = [sys.executable, small_command.__file__, *self.words, *resume, *more]
        variables = environment(**{small_command.HOLD: str(self._hold)})
        with self.output.open("ab") as output:
            return subprocess.Popen(
                command, env=variables, **{"stdout": output, "stderr": output, **way}
            )

    def said(self) -> str:
        """All that its processes have printed."""
        return self.output.read_text(errors="replace")

    def sessions(self) -> int:
        """How many of its processes came so far as to train."""
        return len(read_log(self.out, "start")) if (self.out / LOG).exists() else 0

    def begun(self, process: subprocess.Popen[bytes], sessions: int) -> None:
        """Wait until this many sessions have begun, or the process has ended."""
        while self.sessions() < sessions and process.poll() is None:
            time.sleep(0.01)

    def reached(self, process: subprocess.Popen[bytes], steps: int) -> None:
        """Wait until this many steps more are in the log, or the process has ended."""
        last = self.step() + steps
        while self.step() < last and process.poll() is None:
            time.sleep(0.01)

    def step(self) -> int:
        """The last step in the log."""
        steps = read_log(self.out, "step") if (self.out / LOG).exists() else []
        return max((record["step"] for record in steps), default=0)

    def finished(self) -> bool:
        """Whether a process has come to the end of the run."""
        ends = read_log(self.out, "end") if (self.out / LOG).exists() else []
        return any(record["status"] == "finished" for record in ends)

    def require_whole(self) -> int:
        """Every checkpoint in sight is whole, and none that was saved is lost; the newest step."""
        folders = checkpoint.step_folders(self.out)
        for folder in folders:
            checkpoint.load(folder, optimizer=True)
        newest = int(folders[-1].name.removeprefix("step-")) if folders else 0
        assert newest >= self._saved
        self._saved = newest
        if checkpoint.best(self.out):
            checkpoint.load(self.out / "best")
        return newest

    def require_same(self, undisturbed: Run) -> None:
        """It has come to the end of the undisturbed run, to the bit, and left no rubbish."""
        assert_same_run(undisturbed.out, self.out)
        hidden = {path.name for path in self.out.iterdir() if path.name.startswith(".")}
        assert hidden == {LOCK}
        assert (self.out / LOCK).read_bytes() == b""


def random_moments(name: str) -> random.Random:
    """A generator of moments, whose seed is printed; pytest shows it with a failure."""
    seed = random.SystemRandom().getrandbits(32)
    print(json.dumps({"moments of": name, "seed": seed}))
    return random.Random(seed)
