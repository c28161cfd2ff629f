"""Memory of this process: what it holds, the most it has held, and giving back what is free."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from pathlib import Path

from mlx_pam import host_memory

peak_bytes = host_memory.peak_bytes
"""The most that the process has held since it began, or since `forget_peak`."""


def resident_bytes() -> int | None:
    """What the process holds now; None where the system does not say."""
    return host_memory.status("VmRSS")


def forget_peak() -> None:
    """Count the peak from here on, so that compiling is not in it; Linux alone can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def give_back() -> None:
    """Return freed memory to the system, for the processes that take the next turns."""
    if platform.system() == "Linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
