"""Where and of what a figure was measured: processor, system, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("mlx_pam", "mlx", "torch", "numpy")


def describe() -> dict[str, Any]:
    """The record that every row carries."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "cpu": _processor(),
            "cores": cores(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "os": platform.platform(),
            "load": os.getloadavg()[0],  # processes that wanted a core in the minute before
        },
        "versions": {"python": platform.python_version()} | _versions(),
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
    """Of the repository that this is; the one around an installed package says nothing of it."""
    if not (ROOT / ".git").exists():
        return "unknown"
    return _output("git", "describe", "--always", "--dirty")


def _processor() -> str:
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    facts = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    family = [facts.get(name, "") for name in ("cpu family", "model", "stepping")]
    model = facts.get("model name") or platform.machine()
    return f"{model} (family {'-'.join(family)})" if all(family) else model


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _output(*command: str) -> str:
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return run.stdout.strip() or "unknown"
