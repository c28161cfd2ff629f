"""Folders that are there whole or not at all, and what a killed process leaves of them swept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PREFIX = "building-"
MINUTE, DAY = 60.0, 86400.0


@contextlib.contextmanager
def in_one_step(folder: Path, there: Callable[[], bool]) -> Iterator[Path]:
    """A new folder to write in that takes the place of `folder` when all went well.

    `there` tells whether another process was faster, and all that is wanted is there. The folder
    is locked while it is written, by which others know that it is not to be swept.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent)
    building = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder.parent))
    try:
        with _locked(building):
            yield building
            if not there():
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    building.rename(folder)
                except OSError:
                    if not there():  # even now another may have been faster
                        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove the folders that nobody writes in any more.

    Nothing was written for a minute, and the writer's lock is gone with it; where a file system
    knows no locks, a day.
    """
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another process sweeps as well
            still = time.time() - max(each.stat().st_mtime for each in [path, *path.iterdir()])
            if still > MINUTE and _is_abandoned(path, still):
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_abandoned(folder: Path, still: float) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # its writer is alive
        return False
    except OSError:  # no locks here
        return still > DAY
    finally:
        os.close(descriptor)
    return True
