"""A `tokenizer.json`: the library's own tokens, exact round trips, and nothing added to a text."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizer_files import GPT4, byte_fallback, byte_level, unigram, word_pieces, written

from mlx_pam.config import TokenizerFile
from mlx_pam.data import borders, files
from mlx_pam.data.byte_tokenizer import ByteTokenizer
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.documents import WholeText
from mlx_pam.data.hugging_face import HuggingFaceTokenizer
from mlx_pam.data.stream import encode_passage
from mlx_pam.data.tokenizer import StreamDecoder, get_tokenizer
from mlx_pam.errors import ConfigError

tokenizers = pytest.importorskip("tokenizers")

SPECS = {
    "byte level": byte_level(),
    "byte level, GPT-4's pattern": byte_level(GPT4),
    "byte fallback": byte_fallback(),
    "unigram": unigram(),
    "unigram, words apart": unigram(words_apart=True),
}


def made(spec: dict) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(TokenizerFile.of(json.dumps(spec).encode(), None, "here"))


TOKENIZERS = {kind: made(spec) for kind, spec in SPECS.items()}
OWN = {kind: tokenizers.Tokenizer.from_str(json.dumps(spec)) for kind, spec in SPECS.items()}
OWN["byte fallback"].no_truncation()
UNIGRAM = [*SPECS][3:]
LOSSLESS = st.sampled_from([*SPECS][:3])
SEAMS = st.text(st.sampled_from(" \n\t\r\x0b\x85\xa0\u2003\u2028\ufeffaAs'1é漢🙂=!.</"))
ENGLISH = st.lists(
    st.sampled_from(["river", "The", "stone", "'s", "1234", ",", ".", "\n", "\n\n", " ", " ", "  "])
).map("".join)


def ordinary(text: str) -> bool:
    return "▁" not in text


@given(st.sampled_from([*SPECS]), ENGLISH | SEAMS)
def test_tokens_are_those_of_the_library(kind: str, text: str) -> None:
    if TOKENIZERS[kind]._prefix and text.startswith(" ") and kind in UNIGRAM:
        return  # the library takes the first space of such a text for its own
    assert TOKENIZERS[kind].encode(text) == OWN[kind].encode(text, add_special_tokens=False).ids


@given(LOSSLESS, st.text().filter(ordinary))
@example("byte fallback", " \r\n\ufeff\x00 🙂‍↕️ e\u0301 سلام </s> <|endoftext|> <0x0A>")
@example("byte level", "\r\n\ufeff\x00 🙂‍↕️ e\u0301 سلام <|endoftext|><|user|>")
def test_decode_of_encode_is_the_text(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert not {tokenizer.end_of_text, 1} & {*tokens}
    rest = tokenizer.encode(text, begins=False)
    begun = tokenizer.encode("a")
    assert tokenizer.decode([*begun, *rest]) == "a" + text


@pytest.mark.parametrize("kind", SPECS)
def test_special_tokens_in_a_text_are_ordinary_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    texts = ["a </s> river", "</s>"]
    if kind not in UNIGRAM:  # which knows no other character than those it was trained on
        texts += ["<|endoftext|>a", "<unk>", "<s>"]
    for text in texts:
        tokens = tokenizer.encode(text)
        assert tokenizer.end_of_text not in tokens
        assert tokenizer.decode(tokens) == text


@given(st.sampled_from([*SPECS]), st.data())
def test_stream_of_any_tokens_joins_to_their_decoding(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    decoder = StreamDecoder(tokenizer)
    pieces = [*map(decoder.push, tokens), decoder.flush()]
    assert "".join(pieces) == tokenizer.decode(tokens)


@given(st.sampled_from([*SPECS]), ENGLISH)
def test_decoding_is_that_of_the_library(kind: str, text: str) -> None:
    tokens = TOKENIZERS[kind].encode(text)
    if kind in UNIGRAM and text.startswith(" "):
        return
    assert TOKENIZERS[kind].decode(tokens) == OWN[kind].decode(tokens, skip_special_tokens=False)


@given(st.sampled_from([*SPECS]), ENGLISH | SEAMS, st.integers(1, 6), st.integers(1, 7))
def test_pieces_have_the_tokens_of_the_whole(kind: str, text: str, size: int, block: int) -> None:
    tokenizer = TOKENIZERS[kind]
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(borders, "CONTEXT", 8)
        found = list(borders.cut(blocks, tokenizer._is_border, size))
        assert found == list(borders.cut([text], tokenizer._is_border, size))
    assert "".join(found) == text
    assert all(found)
    assert not any(a.endswith("\r") and b.startswith("\n") for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    "line",
    [
        "One sentence, then another one's: 1234 = four.\n\n",
        "漢字、漢字。\n\n漢字",
        "word " * 12 + "\r\n\r\n",
        "naïve 🙂\n",
    ],
)
def test_long_texts_have_the_tokens_of_the_whole(kind: str, line: str) -> None:
    tokenizer, text = TOKENIZERS[kind], line * (200_000 // len(line))
    assert len(list(tokenizer.pieces([text]))) > 1
    assert tokenizer.encode(text) == OWN[kind].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["a" * 300_000, " " * 300_000 + "x", "漢" * 300_000])
def test_runs_without_a_border_are_encoded(text: str) -> None:
    for kind in [*SPECS][:3]:
        assert TOKENIZERS[kind].decode(TOKENIZERS[kind].encode(text)) == text


def test_a_space_is_of_the_text_only_where_one_was_written() -> None:
    llama = TOKENIZERS["byte fallback"]
    tokens = [*llama.encode("river"), llama.end_of_text, *llama.encode(" stone")]
    assert llama.decode(tokens) == "river</s> stone"
    assert llama.decode([llama.end_of_text, *llama.encode("river")]) == "</s>river"
    decoder = StreamDecoder(llama, begins=False)
    assert decoder.push(llama.encode("river")[0]).startswith(" ")


def test_numbers_without_a_token_are_no_text() -> None:
    spec = json.loads(json.dumps(SPECS["byte level"]))
    token = spec["added_tokens"][0]
    spec["added_tokens"].append(token | {"id": 1000, "content": "<|late|>"})
    tokenizer = made(spec)
    assert tokenizer.vocab_size == 1001
    assert tokenizer.token_bytes(1000) == b"<|late|>"
    assert tokenizer.token_bytes(999) == b""
    for token in (-1, 1001):
        with pytest.raises(KeyError):
            tokenizer.token_bytes(token)


def test_dropout_is_left_out() -> None:
    spec = json.loads(json.dumps(SPECS["byte level"]))
    spec["model"]["dropout"] = 0.9
    text = "the river runs over the stone " * 20
    assert made(spec).encode(text) == TOKENIZERS["byte level"].encode(text)


def test_tokenizers_whose_tokens_are_no_text_by_themselves_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be ByteLevel, or of Replace.*, got WordPiece"):
        made(word_pieces())
    spec = {**SPECS["byte level"], "decoder": None}
    with pytest.raises(ConfigError, match="got None, which does not give the text of each"):
        made(spec)


def test_end_of_word_that_the_decoder_leaves_is_refused() -> None:
    """As of CLIP, whose texts would read `a</w>photo</w>`."""
    spec = SPECS["byte level"]
    spec = spec | {"model": spec["model"] | {"end_of_word_suffix": "</w>"}}
    with pytest.raises(ConfigError, match=r"must have no end_of_word_suffix .* got '</w>'"):
        made(spec)


def test_a_space_that_other_steps_change_is_refused() -> None:
    spec = {**SPECS["unigram"]}
    spec["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": False}
    with pytest.raises(ConfigError, match="must put its space before a text"):
        made(spec)


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("normalizer", {"prepend": "▁"}, "normalizers"),
        ("decoder", ["ByteFallback"], "decoders"),
        ("model", {"unk_token": {}}, "it refuses"),
    ],
)
def test_parts_that_are_no_steps_are_refused_by_name(part, value, named) -> None:
    spec = byte_fallback()
    spec[part] = spec[part] | value if part == "model" else value
    with pytest.raises(ConfigError, match=named):
        made(spec)


def test_what_the_library_refuses_is_told() -> None:
    spec = {**SPECS["byte level"], "normalizer": {"type": "Nonsense"}}
    with pytest.raises(ConfigError, match=r"that tokenizers [\d.]+ reads, got one it refuses"):
        made(spec)


def test_without_the_library_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'mlx_pam\[tokenizers\]'"):
        made(SPECS["byte level"])


def test_corpus_is_its_documents_between_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "cache"))
    tokenizer = get_tokenizer(str(written(tmp_path / "llama", SPECS["byte fallback"])))
    texts = [f"document {number} </s> river" for number in range(20)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = load_corpus(str(path), tokenizer)
    expected: list[int] = []
    for text in texts[:19]:
        expected += [tokenizer.end_of_text] * bool(expected) + tokenizer.encode(text)
    np.testing.assert_array_equal(corpus.train, expected)
    assert corpus.bytes["train"] == sum(len(text.encode()) for text in texts[:19])


@given(st.sampled_from(["bytes", "byte fallback"]), SEAMS, st.integers(1, 9), st.integers(1, 9))
def test_passages_of_a_file_have_the_tokens_of_its_text_from_any_of_them(
    tmp_path_factory: pytest.TempPathFactory, kind: str, text: str, block: int, size: int
) -> None:
    tokenizer = ByteTokenizer() if kind == "bytes" else TOKENIZERS[kind]
    path = tmp_path_factory.getbasetemp() / "whole.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        patch.setattr(borders, "CONTEXT", 8)
        patch.setattr(borders.cut, "__defaults__", (size,))
        passages = list(WholeText(path).read(0, tokenizer.pieces))
        for number, passage in enumerate(passages):
            again = WholeText(path).read(passage.place, tokenizer.pieces)
            assert list(again) == passages[number:]
        found = [token for each in passages for token in encode_passage(each, tokenizer)]
    whole = text.removeprefix("\ufeff").replace("\r\n", "\n")
    assert found == [tokenizer.end_of_text] * bool(passages) + tokenizer.encode(whole)
