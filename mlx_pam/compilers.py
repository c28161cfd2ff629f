"""Compilers that fail: the notice that says so once, and the damaged libraries that they leave."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

# what the loader of shared libraries says of a file that a killed compiler has not written whole
CUT_SHORT = re.compile(
    r"(/[^\n:'\"]*\.so): (?:file too short|invalid ELF header|ELF load command|cannot read file)"
)


@functools.cache  # once
def note(text: str) -> None:
    """Say something on stderr that the user should know, once in a process."""
    print(f"note: {text}", file=sys.stderr)


def reason(error: BaseException | str) -> str:
    """The line of a compiler's output that says what is wrong, at most 200 characters of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = (line for line in lines if re.search(r"\berror: |cannot|denied|not permitted", line))
    return next(errors, lines[0] if lines else type(error).__name__)[:200]


def removed_library(error: BaseException) -> Path | None:
    """Remove the compiled library that could not be loaded for being cut short, and name it.

    None if the error is of another kind, or the file cannot be removed.
    """
    found = CUT_SHORT.search(str(error))
    if found is None:
        return None
    library = Path(found[1])
    try:
        library.unlink()
    except OSError:
        return None
    return library
