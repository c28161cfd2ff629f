"""A file of the Hugging Face hub, read over the network as it is needed, with patience."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from mlx_pam.errors import DataError

WAITS = (1.0, 5.0, 30.0, 120.0, 300.0)
"""Seconds between attempts to read; the client itself tries a few times in each."""


@dataclass(frozen=True)
class HubFile:
    """A file at a commit, by the address that `datasets` gives it: `hf://datasets/...`."""

    address: str

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    def __str__(self) -> str:
        return self.address

    def open(self, mode: str) -> BinaryIO:
        """The file for reading; a network that fails for some minutes is not noticed."""
        from huggingface_hub import HfFileSystem

        path = self.address.removeprefix("hf://")
        return io.BufferedReader(
            PatientFile(self.address, lambda: HfFileSystem().open(path, mode)), 1 << 20
        )


class PatientFile(io.RawIOBase):
    """A file that is opened again, and read where it was left, when reading fails."""

    def __init__(self, address: str, open_: Callable[[], Any]) -> None:
        self._address, self._open = address, open_
        self._file: Any = None
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._at
        if whence == io.SEEK_END:
            offset += self._patiently(lambda file: file.size)
        self._at = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        def read(file: Any) -> bytes:
            file.seek(self._at)
            return file.read(len(buffer))

        raw = self._patiently(read)
        buffer[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)

    def _patiently(self, action: Callable[[Any], Any]) -> Any:
        waits = iter(WAITS)
        while True:
            try:
                self._file = self._file or self._open()
                return action(self._file)
            except Exception as error:  # whatever a network can do
                self._file = None
                told = f"{self._address} cannot be read ({brief(error)})"
                wait = None if isinstance(error, FileNotFoundError) else next(waits, None)
                if wait is None:
                    raise DataError(
                        f"{told}: when it can be had again, go on from the last checkpoint with "
                        "--resume"
                    ) from error
                print(f"note: {told}: trying again in {wait:g} s", file=sys.stderr)
                time.sleep(wait)


def brief(error: Exception) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
