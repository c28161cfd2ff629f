"""Bytes as tokens: UTF-8 exactly, wherever a text is cut, and a mark that no text can hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_pam.data.byte_tokenizer import ByteTokenizer
from mlx_pam.data.mixture import load_mixture
from mlx_pam.data.streamed import Streaming
from mlx_pam.data.tokenizer import StreamDecoder

BYTES = ByteTokenizer()


@given(st.text())
@example("\r\n\ufeff\x00 🙂‍↕️ e\u0301 سلام <|endoftext|>")
def test_tokens_are_the_bytes_and_decode_to_the_text(text: str) -> None:
    tokens = BYTES.encode(text)
    assert bytes(tokens) == text.encode()
    assert BYTES.decode(tokens) == text


@given(st.lists(st.text()))
def test_pieces_have_the_tokens_of_the_whole(blocks: list[str]) -> None:
    pieces = list(BYTES.pieces(blocks))
    assert all(pieces)
    found = [BYTES.encode_piece(piece) for piece in pieces]
    assert {ids.dtype for ids in found} <= {np.dtype("uint16")}
    assert np.concatenate([*found, []]).tolist() == BYTES.encode("".join(blocks))


@given(st.lists(st.integers(0, 256)))
def test_stream_of_any_tokens_joins_to_their_decoding(tokens: list[int]) -> None:
    decoder = StreamDecoder(BYTES)
    assert "".join([*map(decoder.push, tokens), decoder.flush()]) == BYTES.decode(tokens)


def test_half_of_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert BYTES.decode(BYTES.encode("a\udc80b")) == "a\ufffdb"


@pytest.mark.parametrize("token", [-1, 257])
def test_token_outside_the_vocabulary_has_no_bytes(token: int) -> None:
    with pytest.raises(KeyError):
        BYTES.token_bytes(token)


@pytest.mark.parametrize("streaming", [None, Streaming(buffer=2, validation=2)])
def test_corpus_is_its_documents_bytes_between_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: Streaming | None
) -> None:
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "cache"))
    texts = [f"naïve document {n} <|endoftext|>\n" for n in range(20)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = load_mixture(str(path), BYTES, streaming).parts[0].corpus
    held_out = texts[:2] if streaming else texts[19:]
    parts = [part.encode() for part in held_out]
    expected = list(parts[0])
    if streaming:
        expected = [256, *parts[0], 256, *parts[1]]
    assert corpus.validation.tolist() == expected
    assert corpus.validation.dtype == np.uint16
    if not streaming:
        assert corpus.bytes["validation"] == len(corpus.validation)
        assert corpus.train.tolist().count(256) == 18
        assert corpus.bytes["train"] == len(corpus.train) - 18
