"""Ends a stream of text at the first stop text, wherever the pieces of the stream are cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Passes text on up to the first stop text; holds back what may yet become one.

    The stop text that is complete first wins, and among those the one that began first, so the
    result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that may be shown now that `piece` has come; "" once a stop text was found."""
        if self.found:
            return ""
        text = self._held + piece
        ends = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        shown = len(text) - self._longest_beginning(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held back, now that no more text will come."""
        text, self._held = self._held, ""
        return text

    def _longest_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that a stop text begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[len(text) - length :]) for stop in self._stops):
                return length
        return 0
