"""Stop texts: what is shown does not depend on how the text is cut into pieces."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.stop_texts import StopTexts

texts = st.text("ab\n", max_size=14)
stops = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


def shown(pieces: list[str], stop_texts: list[str]) -> list[str]:
    stop = StopTexts(stop_texts)
    return [*(stop.push(piece) for piece in pieces), stop.flush()]


def by_definition(text: str, stop_texts: list[str]) -> str:
    """The text up to the stop text that is complete first, found one character at a time."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stop_texts if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


@given(texts, stops, st.lists(st.integers(0, 14)))
def test_shown_text_is_its_definition_however_it_is_cut(text, stop_texts, cuts):
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    assert "".join(shown(pieces, stop_texts)) == by_definition(text, stop_texts)


@given(texts, stops)
def test_text_is_held_back_only_while_it_may_become_a_stop_text(text, stop_texts):
    stop, seen = StopTexts(stop_texts), ""
    for end, character in enumerate(text, 1):
        seen += stop.push(character)
        if stop.found:
            return
        held = text[len(seen) : end]
        assert seen + held == text[:end]
        assert not held or any(s.startswith(held) and s != held for s in stop_texts)


def test_a_stop_text_across_pieces_is_never_partly_shown():
    assert shown(["One.", "\n", "\nTwo"], ["\n\n"]) == ["One.", "", "", ""]
    assert shown(["One.", "\n", "Two"], ["\n\n"]) == ["One.", "", "\nTwo", ""]


def test_what_was_held_back_is_shown_when_the_text_ends():
    assert shown(["One.", "\n"], ["\n\n"]) == ["One.", "", "\n"]


@pytest.mark.parametrize("pieces", [["xabc"], ["xab", "c"], ["x", "a", "b", "c"]])
def test_the_stop_text_that_is_complete_first_wins(pieces):
    assert "".join(shown(pieces, ["xabc", "ab"])) == "x"


def test_special_characters_are_ordinary():
    assert shown(["a.b", "c*"], ["*", re.escape(".")]) == ["a.b", "c", ""]
