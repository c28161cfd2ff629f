"""`python scripted_train.py train ...` writes the log of `mlx_pam train ...` and trains nothing.

What it does is told by the variable SCRIPT, as JSON: the best learning rate (`best`), above which
rate it diverges (`diverges`), names of run folders that fail (`fails`), seconds a step (`pause`),
the step after which it does nothing until it is asked to leave (`holds`).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from mlx_pam.cli.arguments import parse
from mlx_pam.config import TrainConfig
from mlx_pam.errors import MlxPamError
from mlx_pam.training.interrupt import Interrupt
from mlx_pam.training.lock import RunLock
from mlx_pam.training.metrics import LOG, Log, read_log
from mlx_pam.training.sweep import children

COMMAND = (sys.executable, __file__)


def script(**rules: object) -> str:
    unset = {"best": 1e-3, "diverges": math.inf, "fails": [], "pause": 0.0, "holds": 0}
    return json.dumps(unset | rules)


class Inline:
    """Stands where `subprocess.Popen` does: the scripted training, done by the time it is asked."""

    def __init__(self, command: Sequence[str], stderr: IO[bytes], **rest: object) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.code = main(command[len(COMMAND) :])
        stderr.write(said.getvalue().encode())

    def poll(self) -> int:
        return self.code


def replace_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a sweep call the script for its runs, inside this process."""
    inline = types.SimpleNamespace(Popen=Inline, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(children, "subprocess", inline)
    monkeypatch.setattr(children, "COMMAND", COMMAND)
    monkeypatch.setattr(children, "POLL", 0.02)
    monkeypatch.setenv("SCRIPT", script())


def main(words: Sequence[str]) -> int:
    """What `mlx_pam.cli.main` is, for the command train alone."""
    try:
        return _run(words)
    except MlxPamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(words: Sequence[str]) -> int:
    rules = json.loads(os.environ["SCRIPT"])
    config = parse(TrainConfig, words[1:], prog="mlx_pam train", description="")
    run = config.run_folder
    assert config.resume == (run / LOG).exists()
    with RunLock(run) as lock:
        lock.take()
        return _train(config, run, rules)


def _train(config: TrainConfig, run: Path, rules: dict) -> int:
    done = max((r["step"] for r in read_log(run, "step")), default=0) if config.resume else 0
    log = Log(run, done if config.resume else None)
    log.write("start", {"step": done, "threads": os.environ.get("OMP_NUM_THREADS")})
    loss = 1.0 + abs(math.log2(config.lr / rules["best"]))
    with Interrupt() as interrupt:
        for step in range(done + 1, config.steps + 1):
            if interrupt.requested:
                log.write("end", {"step": step - 1, "status": "interrupted"})
                return 130
            if run.name in rules["fails"] and step == 2:
                print("error: the disk is full\nusage: this is no error", file=sys.stderr)
                return 1
            if config.lr > rules["diverges"]:
                log.write("diverged", {"step": step, "loss": math.nan})
                print(f"error: training diverged at step {step}", file=sys.stderr)
                return 1
            time.sleep(rules["pause"])
            log.write("step", {"step": step, "loss": loss, "tokens_per_s": 100.0})
            while step == rules["holds"] and not interrupt.requested:
                time.sleep(0.01)
    log.write("evaluation", {"step": config.steps, "loss": loss})
    log.write("end", {"step": config.steps, "status": "finished"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
