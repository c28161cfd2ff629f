"""A disk that is full, or fails once, at the n-th write to a folder; imported by tests."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mlx_pam import durable

NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """Counts the writes to a folder while `watched`; the one of number `fails` finds no room.

    lasting: so do all later ones, until the end. What removes files always works.
    """

    def __init__(self, folder: Path, fails: int | None = None, *, lasting: bool = False) -> None:
        self.writes = 0
        self._folder, self._fails, self._lasting = str(folder), fails, lasting

    def write(self, what: object) -> None:
        """Told of each write; raises when there is no room for it."""
        if not str(what).startswith(self._folder):
            return
        self.writes += 1
        if self._fails and (
            self.writes == self._fails or (self._lasting and self.writes > self._fails)
        ):
            raise OSError(*NO_ROOM.args)

    @contextmanager
    def watched(self) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("mkdir", "touch", "rename", "replace", "chmod"):
                patch.setattr(Path, name, self._told(getattr(Path, name)))
            patch.setattr(Path, "open", self._opening(Path.open))
            patch.setattr(durable, "sync", self._told(durable.sync))
            patch.setattr(durable, "save_file", self._told(durable.save_file, place=1))
            patch.setattr(os, "truncate", self._told(os.truncate))
            yield self

    def _told(self, work: Callable, place: int = 0) -> Callable:
        def told(*given: Any, **more: Any) -> Any:
            self.write(given[place])
            return work(*given, **more)

        return told

    def _opening(self, work: Callable) -> Callable:
        def opened(path: Path, mode: str = "r", *given: Any, **more: Any) -> Any:
            if not set(mode) & set("wax+"):
                return work(path, mode, *given, **more)
            self.write(path)
            return _File(self, path, work(path, mode, *given, **more))

        return opened


class _File:
    """An open file whose writes are counted too."""

    def __init__(self, disk: Disk, path: Path, file: io.IOBase) -> None:
        self._disk, self._path, self._file = disk, path, file

    def write(self, data: Any) -> int:
        self._disk.write(self._path)
        return self._file.write(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
