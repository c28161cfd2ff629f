"""Whether `mx.compile` can do its work on this machine."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from mlx_pam import compilers

PROBE = '#include <cmath>\nextern "C" double probe(double x) { return std::exp(x); }\n'


def can_compile() -> bool:
    """`mx.compile` needs a GPU, or on the CPU a C++ compiler that works and a folder to write to.

    A compiler that is there and does not work is named in a notice, once.
    """
    if mx.default_device() == mx.gpu or os.environ.get("MLX_DISABLE_COMPILE"):
        return True  # turned off, it runs what it is given
    kernels = Path(tempfile.gettempdir()) / "mlx" / version("mlx") / "cpu"  # its first user's
    existing = next(folder for folder in (kernels, *kernels.parents) if folder.exists())
    compiler = shutil.which("g++")
    if compiler is None or not os.access(existing, os.W_OK):
        return False
    obstacle = _obstacle(compiler, tempfile.gettempdir())
    if obstacle:
        compilers.note(f"MLX runs uncompiled, which is slower: {obstacle}")
    return obstacle is None


@functools.cache
def _obstacle(compiler: str, folder: str) -> str | None:
    """Why a library cannot be compiled and loaded there, as MLX does it; None if it can."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        source, library = Path(inside, "probe.cpp"), Path(inside, "probe.so")
        source.write_text(PROBE)
        command = [compiler, "-std=c++17", "-fPIC", "-shared", source, "-o", library]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = compilers.reason(done.stderr or f"it returned {done.returncode}")
                return f"{compiler} does not work: {said}"
            ctypes.CDLL(str(library))
        except OSError as error:
            return f"what {compiler} makes in {folder} cannot be used: {compilers.reason(error)}"
    return None
