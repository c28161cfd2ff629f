"""GPT-2's tokenizer: the published table and pattern, exact round trips, texts of any shape."""

from __future__ import annotations

import hashlib
import lzma
from importlib import resources

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from mlx_pam.data import gpt2 as module
from mlx_pam.data.gpt2 import REACH, gpt2, pieces, read_ranks
from mlx_pam.data.tokenizer import StreamDecoder
from mlx_pam.errors import DataError

GPT2 = gpt2()
SEAMS = st.text(
    st.sampled_from(" \n\t\r\x0b\x1c\x1f\x85\xa0\u180e\u2003\u200b\u2028\ufeffa's1é漢🙂=!")
)


def plain(text: str) -> list[int]:
    """The tokens as tiktoken gives them for the whole text at once."""
    return GPT2._encoding.encode_ordinary(text)


def test_table_is_the_one_that_tiktoken_would_download(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def download(url: str, expected_hash: str) -> dict[bytes, int]:
        asked["sha256"] = expected_hash
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", download)
    published = openai_public.r50k_base()  # GPT-2's encoding in tiktoken's own file format
    table = lzma.decompress((resources.files("mlx_pam.data") / module.RANKS_FILE).read_bytes())
    assert hashlib.sha256(table).hexdigest() == asked["sha256"] == module.RANKS_SHA256
    assert published["pat_str"] == module.PATTERN
    assert published["special_tokens"] == {"<|endoftext|>": GPT2.end_of_text}
    assert published["explicit_n_vocab"] == GPT2.vocab_size == 50257


def test_known_texts_have_their_known_tokens() -> None:
    assert GPT2.encode("hello world") == [31373, 995]
    assert GPT2.encode("Hello, my dog is cute") == [15496, 11, 616, 3290, 318, 13779]
    assert GPT2.encode("") == []
    assert GPT2.token_bytes(262) == b" the"


def test_marker_inside_a_text_is_ordinary_text() -> None:
    tokens = GPT2.encode("a<|endoftext|>b")
    assert GPT2.end_of_text not in tokens
    assert GPT2.decode(tokens) == "a<|endoftext|>b"


@given(SEAMS)
def test_pattern_matches_as_the_one_of_the_original_release(text: str) -> None:
    original = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    assert regex.findall(module.PATTERN, text) == regex.findall(original, text)


@given(st.text())
@example("\r\n\ufeff\x00 🙂‍↕️ e\u0301 سلام <|endoftext|>")
def test_decode_of_encode_is_the_text(text: str) -> None:
    assert GPT2.decode(GPT2.encode(text)) == text


@given(SEAMS, st.integers(1, 6), st.integers(1, 7))
def test_pieces_have_the_tokens_of_the_whole(text: str, size: int, block: int) -> None:
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    found = list(pieces(blocks, size))
    assert "".join(found) == text
    assert [token for piece in found for token in GPT2.encode_piece(piece)] == plain(text)
    assert all(found)


def test_text_longer_than_a_piece_has_the_tokens_of_the_whole() -> None:
    text = "One sentence, then another one's: 1234 = four.\n\n" * 5000
    assert len(list(pieces([text]))) > 1
    assert GPT2.encode(text) == plain(text)


@pytest.mark.parametrize(
    "text", ["a" * 10**6, " " * 2_000_000 + "x", "x" + "\n" * 2_000_000 + " y"]
)
def test_runs_without_a_seam_are_encoded(text: str) -> None:
    assert GPT2.decode(GPT2.encode(text)) == text


def streamed(tokens: list[int]) -> list[str]:
    decoder = StreamDecoder(GPT2)
    return [*map(decoder.push, tokens), decoder.flush()]


@given(st.text(min_size=1))
@example("漢字 🙂🏽 e\u0301")
def test_stream_gives_whole_characters_that_join_to_the_text(text: str) -> None:
    tokens = GPT2.encode(text)
    bytewise = [GPT2.encode("a")[0]]  # every byte is a token of its own as well
    bytewise += [BYTE[byte] for byte in text.encode()]
    assert "".join(streamed(tokens)) == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(streamed(bytewise))
    assert "".join(streamed(bytewise)) == "a" + text


BYTE = {GPT2.token_bytes(token)[0]: token for token in range(256)}


@given(st.lists(st.integers(0, GPT2.vocab_size - 1)) | st.lists(st.sampled_from([*BYTE.values()])))
def test_stream_of_any_tokens_joins_to_their_decoding(tokens: list[int]) -> None:
    assert "".join(streamed(tokens)) == GPT2.decode(tokens)


def test_end_inside_a_character_is_flushed_once() -> None:
    decoder = StreamDecoder(GPT2)
    assert [decoder.push(BYTE[byte]) for byte in "🙂".encode()[:3]] == ["", "", ""]
    assert [decoder.flush(), decoder.flush()] == ["\ufffd", ""]
    assert decoder.push(BYTE[ord("a")]) == "a"


@pytest.mark.parametrize("damage", [b"", b"not xz", lzma.compress(b"QQ== 0\n")])
def test_damaged_table_is_an_error_with_a_remedy(damage: bytes) -> None:
    with pytest.raises(DataError, match="reinstall"):
        read_ranks(damage)


@pytest.mark.parametrize(
    "text",
    ["a" * 20_000, "漢字" * 9_000, " " * 20_000 + "x", "'" * 20_000 + "s", "ab1.-é" * 3_000,
     "a\r\nb" + "c" * 20_000],
)  # fmt: skip
def test_run_without_a_border_is_cut_where_its_tokens_stay(text: str) -> None:
    """In pieces of bounded length, whatever the blocks that the text comes in."""
    blocks = [text[begin : begin + 7_777] for begin in range(0, len(text), 7_777)]
    found = list(pieces(blocks, 1_000, gpt2()._inner))
    assert "".join(found) == text
    assert max(map(len, found)) <= 1_000 + REACH + 2
    tokens = [
        token for piece in found for token in gpt2().encode_piece(piece.replace("\r\n", "\n"))
    ]
    assert tokens == gpt2()._encoding.encode_ordinary(text.replace("\r\n", "\n"))
    assert list(pieces([text], 1_000, gpt2()._inner)) == found
