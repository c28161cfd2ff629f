"""Whether `mx.compile` can do its work on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx


def can_compile() -> bool:
    """`mx.compile` needs a GPU, or on the CPU a C++ compiler and its folder to write to."""
    if mx.default_device() == mx.gpu:
        return True
    kernels = Path(tempfile.gettempdir()) / "mlx" / version("mlx") / "cpu"  # its first user's
    existing = next(folder for folder in (kernels, *kernels.parents) if folder.exists())
    return os.access(existing, os.W_OK) and shutil.which("g++") is not None
