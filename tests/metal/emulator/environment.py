"""What emulation needs of this computer, and what a process under a sanitizer is started with."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .build import SANITIZERS, compiler

NOT_OURS = f"suppressions={Path(__file__).with_name('msl') / 'thread_sanitizer.txt'}"
LIBRARIES = {"address,undefined": "asan", "thread": "tsan"}


def absence() -> str | None:
    """Why Metal kernels cannot be emulated here, or None."""
    if sys.platform != "linux":
        return "Metal kernels are emulated on Linux; on a Mac they run"
    if compiler() is None:
        return "no C++ compiler (c++, g++, clang++): on Debian or Ubuntu, apt install g++"
    if importlib.util.find_spec("clang") is None:
        return "no libclang: pip install libclang"
    return None


def require() -> None:
    """Skip what emulates where that cannot be done; under CI on Linux, fail instead."""
    if reason := absence():
        _skip(reason)


def sanitizer_environment(sanitize: str) -> dict[str, str]:
    """Environment variables of a process in which `emulated(sanitize=...)` works.

    The sanitizer's library must be there before all others, hence in a process of its own. Its
    report goes to that process's standard error, and its exit code is not 0. Skips as `require`
    where the compiler, which has to be GCC, has no such library.
    """
    name = f"lib{LIBRARIES[sanitize]}.so"
    command = [compiler(), f"-print-file-name={name}"]
    library = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    if not library.is_absolute():
        _skip(f"{compiler()} has no {name}: on Debian or Ubuntu, apt install g++")
    return {
        **os.environ,
        "LD_PRELOAD": str(library.resolve()),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # Python frees little at its end
        "UBSAN_OPTIONS": "halt_on_error=1",
        "TSAN_OPTIONS": f"exitcode=66:{NOT_OURS}",
    }


def _skip(reason: str) -> None:
    if os.environ.get("CI") and sys.platform == "linux":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def check_sanitizer(sanitize: str) -> None:
    """Refuse a sanitizer whose library this process has not loaded."""
    if sanitize not in SANITIZERS:
        names = ", ".join(map(repr, SANITIZERS))
        raise ValueError(f"sanitize must be None, {names}, got {sanitize!r}")
    if not hasattr(ctypes.CDLL(None), f"__{LIBRARIES[sanitize]}_init"):
        raise RuntimeError(
            f"sanitize={sanitize!r} needs a process that was started with the environment of "
            f"sanitizer_environment({sanitize!r})"
        )
