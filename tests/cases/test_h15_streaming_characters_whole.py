"""H15: streamed text comes in whole characters, none lost, none twice."""

from __future__ import annotations

import pytest
from tiny_models import overfitted

from mlx_pam import generate, stream
from mlx_pam.language_model import LanguageModel

LINE = "相位联想 🦜🏳️‍🌈 é x̂ ạ̈ 👩🏽‍🚀 𝔓 完。"
BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return overfitted(LINE, steps=80)


def test_the_streamed_line_is_the_line(model):
    length = len(model.tokenizer.encode(LINE))
    pieces = list(stream(model, "", temperature=0, max_tokens=length))
    assert "".join(pieces) == LINE
    assert all(pieces)
    assert len(pieces) < length  # characters of several tokens came out whole


def test_joined_pieces_are_the_text_wherever_it_ends(model):
    """Cut after every number of tokens; a broken character is flushed once, at the very end."""
    length = len(model.tokenizer.encode(LINE))
    broken = 0
    for tokens in range(length + 1):
        pieces = list(stream(model, "", temperature=0, max_tokens=tokens))
        text = generate(model, "", temperature=0, max_tokens=tokens).text
        assert "".join(pieces) == text
        assert all(pieces)
        assert LINE.startswith(text.removesuffix(BROKEN))
        assert BROKEN not in text[:-1]
        broken += text.endswith(BROKEN)
    assert broken > 0
