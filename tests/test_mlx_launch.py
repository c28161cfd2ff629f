"""`mlx.launch` itself, with the command line: how a run of two processes is stopped and gone on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import launching
import pytest
from small_run import corpus as corpus

from mlx_pam import checkpoint
from mlx_pam.training.metrics import read_log

LAUNCHER = shutil.which("mlx.launch", path=str(Path(sys.executable).parent))
SETTINGS = [
    "--scale", "300k", "--steps", "1000", "--seq-len", "8", "--batch-size", "2",
    "--eval-every", "0", "--sample-every", "0", "--save-every", "0",
]  # fmt: skip

pytestmark = pytest.mark.slow


def start(corpus: Path, out: Path, *more: str) -> subprocess.Popen:
    """A process group of its own, as a command has it that is typed into a terminal."""
    port = launching.free_ports(1)[0]
    command = [LAUNCHER, "-n", "2", "--starting-port", str(port), sys.executable, "-m", "mlx_pam"]
    return subprocess.Popen(
        [*command, "train", "--data", str(corpus), "--out", str(out), *SETTINGS, *more],
        env=os.environ | launching.QUIET,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def members(group: int) -> set[int]:
    """Processes of a group that are still there."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid="], capture_output=True, text=True)
    pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
    return {process for process, its_group in pairs if its_group == group}


def test_ctrl_c_saves_and_ends_all_and_the_run_can_be_gone_on_with(corpus, tmp_path):
    out = tmp_path / "run"
    launched = start(corpus, out)
    end = time.monotonic() + launching.SECONDS
    while not ((out / "log.jsonl").exists() and len(read_log(out, "step")) >= 2):
        assert launched.poll() is None, launched.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.1)
    os.killpg(launched.pid, signal.SIGINT)
    launched.communicate(timeout=launching.SECONDS)
    assert not members(launched.pid)
    last = read_log(out, "step")[-1]["step"]
    assert checkpoint.load(out).training["step"] == last

    launched = start(corpus, out, "--resume", "--stop-after", str(last + 2))
    said, _ = launched.communicate(timeout=launching.SECONDS)
    assert [record["step"] for record in read_log(out, "step")] == list(range(1, last + 3)), said
    lines = said.splitlines()
    assert sum(line.startswith(f"stopped at step {last + 2:,}") for line in lines) == 1
    assert any(line.startswith("go on with: mlx.launch -n 2 mlx_pam train") for line in lines)
