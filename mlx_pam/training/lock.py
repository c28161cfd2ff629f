"""One run at a time in a run folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import platform
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from mlx_pam.errors import ConfigError, RunError

LOCK = ".lock"


class RunLock:
    """Keeps other runs out of a folder, from `take` to the end of the `with` block.

    The system frees the lock of a process that has died, so what a crash leaves is no obstacle.
    The file says who holds it; it stays, empty, when the run is over, and folders that were made
    for a run that wrote nothing go again.
    """

    def __init__(self, run: Path) -> None:
        self.note: str | None = None
        """What to tell the user, where the folder cannot be locked."""
        self._run = run
        self._file: BinaryIO | None = None
        self._made: list[Path] = []  # folders, the innermost first

    def take(self) -> None:
        """Make the folder and lock it; raises `RunError` while another run is at work in it."""
        try:
            folders = (self._run, *self._run.parents)
            self._made = list(itertools.takewhile(lambda folder: not folder.exists(), folders))
            self._run.mkdir(parents=True, exist_ok=True)
            while not self._is_in_place():  # another may have removed what was opened here
                self._close()
                self._file = (self._run / LOCK).open("a+b", buffering=0)
                self._lock()
            if not os.access(self._run, os.W_OK):  # else the first checkpoint would say so
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._file.truncate(0)
            self._file.write(json.dumps(_this_process()).encode())
        except OSError as error:
            self._close()
            raise ConfigError(
                f"out must be a folder that can be written to, got {self._run}: "
                f"{_in_the_way(self._run) or error.strerror}: give another --out"
            ) from error

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is None:
            return
        with suppress(OSError):
            self._file.truncate(0)
            if self._made and [path.name for path in self._run.iterdir()] == [LOCK]:
                (self._run / LOCK).unlink()
                for folder in self._made:
                    folder.rmdir()  # until one has something else in it
        self._close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self._file.seek(0)
            holder = _in_words(self._file.read())
            self._close()
            raise RunError(
                f"out must be a folder that no other run is at work in, got {self._run}, where "
                f"{holder} is: wait for it, end it, or give another --out"
            ) from None
        except OSError as error:  # a network folder whose server has no locks
            self.note = (
                f"note: {self._run} cannot be locked ({error.strerror}): see to it that no other "
                "run is at work in it"
            )

    def _is_in_place(self) -> bool:
        if self._file is None:
            return False
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), (self._run / LOCK).stat())
        return False

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_held(run: Path) -> bool:
    """Whether a process is at work in a run folder, where the system can tell."""
    with suppress(FileNotFoundError), (run / LOCK).open("rb") as file:
        try:  # this keeps out a run that begins just now: asked only where none is about to
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
    return False


def _in_the_way(run: Path) -> str | None:
    """Why a folder cannot be made, where the reason is something on its path."""
    with suppress(OSError):
        for path in (run, *run.parents):
            if path.is_symlink() and not path.exists():
                return f"{path} is a link to {path.readlink()}, which does not exist"
            if path.exists():
                return None if path.is_dir() else f"{path} is a file"
    return None


def _this_process() -> dict[str, object]:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return {"process": os.getpid(), "host": platform.node(), "since": since}


def _in_words(record: bytes) -> str:
    try:
        return "process {process} on {host}, since {since},".format(**json.loads(record))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"
