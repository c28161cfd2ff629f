"""Any text, any tokens, however they are cut: text comes back, in whole characters, once."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as some
from properties.examples import examples

from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.tokenizer import StreamDecoder
from mlx_pam.stop_texts import StopTexts

GPT2 = gpt2()
BYTE = {GPT2.token_bytes(token)[0]: token for token in range(256)}

odd_characters = some.sampled_from(
    "a 's1\n\r\t\x00\x7f\x85\xa0\u200d\ufeff\ufffd\u0301é漢🙂👩🏽ﷺ<|>"
)
texts = some.text(odd_characters) | some.text() | some.text(some.characters(min_codepoint=0x1F000))
tokens = some.lists(some.integers(0, GPT2.vocab_size - 1), max_size=40)
byte_tokens = some.lists(some.sampled_from(sorted(BYTE.values())), max_size=40)
encoded = texts.map(GPT2.encode)
any_tokens = tokens | byte_tokens | encoded | some.builds(list.__add__, encoded, tokens)


@examples(150)
@given(texts)
def test_a_text_is_its_tokens_bytes(text):
    ids = GPT2.encode(text)
    assert GPT2.decode(ids) == text
    assert b"".join(map(GPT2.token_bytes, ids)) == text.encode()
    assert all(0 <= token < GPT2.vocab_size for token in ids)
    assert GPT2.end_of_text not in ids
    assert np.array_equal(GPT2.encode(GPT2.decode(ids)), ids)


@examples(100)
@given(some.lists(texts, max_size=4))
def test_texts_joined_by_their_tokens_are_the_texts_joined(parts):
    joined = [token for part in parts for token in GPT2.encode(part)]
    assert GPT2.decode(joined) == "".join(parts)


@examples(150)
@given(any_tokens)
def test_a_stream_is_the_decoding_piece_by_piece(ids):
    """Each piece ends where a character does, so it is the decoding of what has come so far."""
    decoder, shown, raw = StreamDecoder(GPT2), "", b""
    for token in ids:
        piece = decoder.push(token)
        shown, raw = shown + piece, raw + GPT2.token_bytes(token)
        held = raw.decode("utf-8", errors="replace").removeprefix(shown)
        assert raw.decode("utf-8", errors="replace").startswith(shown)
        assert held in ("", "\ufffd")  # at most one character is not told yet
    shown += decoder.flush()
    assert shown == GPT2.decode(ids) == raw.decode("utf-8", errors="replace")
    assert decoder.flush() == ""


@examples(100)
@given(texts)
def test_characters_come_whole_when_each_byte_is_a_token(text):
    decoder = StreamDecoder(GPT2)
    pieces = [decoder.push(BYTE[byte]) for byte in text.encode()]
    assert decoder.flush() == ""
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)  # a byte completes one character at most


@examples(150)
@given(some.data(), some.lists(some.text("ab\n🙂", min_size=1, max_size=4), max_size=4))
def test_stop_texts_do_not_depend_on_the_cuts(data, stops):
    text = data.draw(some.text("ab\n🙂", max_size=30))
    cuts = data.draw(some.lists(some.integers(0, len(text)), max_size=8))
    places = [0, *sorted(cuts), len(text)]
    watch, shown = StopTexts(stops), ""
    for start, end in pairwise(places):
        shown += watch.push(text[start:end])
        assert text.startswith(shown)
    shown += watch.flush()
    ends = [(match.end(), match.start()) for stop in stops
            for match in [re.search(re.escape(stop), text)] if match]  # fmt: skip
    assert watch.found == bool(ends)
    assert shown == (text[: min(ends)[1]] if ends else text)
