"""Counts of the faults that were tried and of what they cost; `python tally.py FILE` is a table.

With MLX_PAM_TALLY=FILE in its environment, a test run adds a line of JSON to that file for each
kind of fault.
"""

from __future__ import annotations

import collections
import json
import os
import sys
from pathlib import Path

COLUMNS = ("fault", "backend", "tried", "repeated", "lost")
HEAD = ("fault", "backend", "times", "steps trained again", "lost")


class Tally:
    """Of one kind of fault in one backend."""

    def __init__(self) -> None:
        self.places: collections.Counter[str] = collections.Counter()
        """Where faults hit."""
        self.repeated: int | str = 0
        """Steps that had to be trained again, if that is counted."""

    def add(self, place: str, repeated: int | None = 0) -> None:
        self.places[place] += 1
        self.repeated = "not counted" if repeated is None else self.repeated + repeated

    def write(self, fault: str, backend: str) -> None:
        """Write the counts down; for a test that has shown that nothing was lost."""
        places = dict(self.places.most_common())
        record = {"fault": fault, "backend": backend, "tried": self.places.total()}
        record |= {"places": places, "repeated": self.repeated, "lost": "nothing"}
        print(json.dumps(record))
        if path := os.environ.get("MLX_PAM_TALLY"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def table(records: list[dict]) -> str:
    """Markdown: a row for each kind of fault, and beneath it where the faults hit."""
    rows = [HEAD, ["---"] * len(HEAD)]
    for record in records:
        rows.append([str(record[name]) for name in COLUMNS])
        if len(record["places"]) > 1:
            rows += [["· " + place, "", str(n), "", ""] for place, n in record["places"].items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table([json.loads(line) for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]))
