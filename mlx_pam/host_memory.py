"""Memory of this machine and of this process on it, as the system counts them."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from mlx_pam import processes

CONTAINER_LIMITS = (  # of control groups, in their two versions
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

STATUS = Path("/proc/self/status")


def total_bytes() -> int:
    """What this process can take: the machine's memory or its container's, shared evenly by the
    processes of one run."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_container_limits()]) // processes.count_here()


def peak_bytes() -> int:
    """The most that this process has held so far."""
    peak = status("VmHWM")
    if peak is not None:  # Linux, where ru_maxrss begins with the parent's
        return peak
    unit = 1 if platform.system() == "Darwin" else 1024  # ru_maxrss: bytes there, else KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def status(field: str) -> int | None:
    """Bytes of a field that Linux keeps of this process; None where the system does not say."""
    if not STATUS.exists():
        return None
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024 if field in lines else None


def _container_limits() -> Iterator[int]:
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # absent, or the word "max"
            yield int(path.read_text())
