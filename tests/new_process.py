"""The command, and Python itself, in a process of its own as users start it; imported by tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = str(Path(__file__).parent)
Done = subprocess.CompletedProcess


def python(
    *words: str | bytes | Path, folder: Path | None = None, stdin: bytes = b"", **variables: str
) -> Done[str]:
    """Run `python WORDS...` to its end, in a folder, with more variables in its environment."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        input=stdin,
        capture_output=True,
        env=environment(**variables),
    )
    return Done(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def mlx_pam(*words: str | bytes | Path, **way: object) -> Done[str]:
    """Run `mlx_pam WORDS...`; the rest as with `python`."""
    return python("-m", "mlx_pam", *words, **way)


def environment(**variables: str) -> dict[str, str]:
    """This process's variables and those given; modules beside this one can be imported."""
    path = os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **variables}
