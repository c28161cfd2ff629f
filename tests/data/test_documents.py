"""Documents of a file are the same from any place of it, whatever the blocks it is read in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.data import files
from mlx_pam.data.documents import JsonLines, Passage, Separated, WholeText, reader
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.source import local
from mlx_pam.data.streamed import local_files
from mlx_pam.errors import DataError

ODD = st.text(st.sampled_from("ab \n\r\té漢🙂\x00\ufeff<|>"), max_size=30)


def written(folder: Path, name: str, raw: bytes) -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def texts(passages: list[Passage]) -> list[str]:
    """Documents from their passages."""
    found: list[str] = []
    for passage in passages:
        if passage.begins:
            found.append("")
        found[-1] += passage.text
    return found


def json_lines(documents: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in documents).encode()


def separated(documents: list[str]) -> bytes:
    return "\n<|endoftext|>\n".join(documents).encode()


def table(documents: list[str]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    rows = pyarrow.table({"id": [0] * len(documents), "text": pyarrow.array(documents, "string")})
    pyarrow.parquet.write_table(rows, sink, row_group_size=3)
    return sink.getvalue().to_pybytes()


KINDS = {"a.jsonl": json_lines, "a.txt": separated, "a.parquet": table}


@pytest.mark.parametrize("name", KINDS)
@given(st.lists(ODD, max_size=9), st.integers(1, 40))
def test_reading_goes_on_from_any_document_as_it_would_have(
    tmp_path_factory: pytest.TempPathFactory, name: str, documents: list[str], block: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = written(folder, name, KINDS[name](documents))
    how = "by-endoftext" if name == "a.txt" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        passages = list(reader(path, how).read())
        for number, passage in enumerate(passages):
            assert list(reader(path, how).read(passage.place)) == passages[number:]
    expected = [text.replace("\r\n", "\n") for text in documents]
    if name == "a.txt":  # newlines at the ends are the separator's, and so is a mark at the start
        expected = [text for document in expected if (text := document.strip("\r\n"))]
        if documents and documents[0].startswith("\ufeff"):
            return
    assert texts(passages) == expected
    assert reader(path, how).count() == len(expected)


@given(ODD, st.integers(1, 9), st.integers(1, 9))
def test_pieces_of_a_text_have_its_tokens_from_any_of_them(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int, size: int
) -> None:
    path = written(tmp_path_factory.getbasetemp(), "whole.txt", text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        patch.setattr("mlx_pam.data.gpt2.pieces.__defaults__", (size, None))
        passages = list(WholeText(path).read())
        for number, passage in enumerate(passages):
            assert list(WholeText(path).read(passage.place)) == passages[number:]
    whole = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found = [token for passage in passages for token in gpt2().encode_piece(passage.text)]
    assert found == gpt2().encode(whole)
    assert [passage.begins for passage in passages] == [True, *[False] * len(passages[1:])][
        : len(passages)
    ]


def test_blank_lines_and_markers_separate_where_they_are_asked_to(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbfone\r\ntwo\r\n\r\n \t\r\nthree <|endoftext|>\n<|endoftext|> \nfour\n"
    path = written(tmp_path, "a.txt", raw)
    assert texts(list(Separated(path, "by-blank-line").read())) == [
        "one\ntwo", "three <|endoftext|>\n<|endoftext|> \nfour",
    ]  # fmt: skip
    assert texts(list(Separated(path, "by-endoftext").read())) == [
        "one\ntwo\n\n \t\nthree <|endoftext|>", "four",
    ]  # fmt: skip
    assert isinstance(reader(path), WholeText)


def test_json_that_utf8_cannot_hold_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", rb'{"text": "a \ud83d b \ud83d\ude42"}' + b"\n\n")
    assert texts(list(JsonLines(path, "text").read())) == ["a \ufffd b 🙂"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", r"no JSON \(.*\) at offset 16"),
        (b"[" * 100_000, r"no JSON \(.*recursion"),
        (b"[1]", "a list at offset 16"),
        (b'"x"', "a text at"),
        (b"3", "a number at"),
        (b"null", "null at"),
        (b'{"body": "x", "id": 1}', "the fields 'body', 'id' at"),
        (b'{"text": 3}', "a number in that field at"),
        (b'{"text": true}', "a truth value in that field at"),
        (b'{"text": "\xff"}', "must be UTF-8, got byte 0xff at offset 26"),
    ],
)
def test_line_that_is_no_document_is_told_by_its_offset(
    tmp_path: Path, line: bytes, said: str
) -> None:
    path = written(tmp_path, "a.jsonl", b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    with pytest.raises(DataError, match=said) as raised:
        list(JsonLines(path, "text").read())
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "column", "said"),
    [
        (
            {"a": ["x"], "b": ["y"]},
            None,
            r"one beside numbers only, got a \(string\), b \(string\)",
        ),
        ({"n": [1]}, None, r"one beside numbers only, got n \(int64\)"),
        ({"a": ["x"], "n": [1]}, "n", "column of text 'n', got one of int64; .*: 'a'"),
        ({"a": ["x"], "n": [1]}, "b", "column of text 'b', got none; .*: 'a'"),
        ({"text": [["x"]], "id": ["y"]}, None, "'text', got one of list<.*>; .*: 'id'"),
        ({"text": [{"x": "y"}], "id": ["y"]}, None, "'text', got one of struct<.*>; .*: 'id'"),
        ({"text": [b"x"], "id": ["y"]}, None, "'text', got one of binary; .*: 'id'"),
        ({"text": [None], "id": ["y"]}, None, "'text', got one of null; .*: 'id'"),
        ({"messages": [["x"]], "source": ["y"]}, None, r"got messages \(list<.*>\), source"),
    ],
)
@pytest.mark.parametrize("take", [local, local_files])
def test_table_whose_column_is_not_certain_is_an_error(
    tmp_path: Path, take: Callable[..., object], columns: dict, column: str | None, said: str
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError, match=said + ".*: name one, as in DATA\\?column=NAME"):
        take(path, column)


@pytest.mark.parametrize("kind", ["dictionary", "large_string", "string"])
def test_any_encoding_of_strings_is_text(tmp_path: Path, kind: str) -> None:
    values = pyarrow.array(["x", None, "y", "x"])
    values = values.dictionary_encode() if kind == "dictionary" else values.cast(kind)
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": values, "id": ["1", "2", "3", "4"]}), path)
    assert texts(list(reader(path).read())) == ["x", "", "y", "x"]
    assert local(path).description.endswith(", text in column 'text', some documents held out")
    assert local_files(path).description.endswith(", text in column 'text'")


@pytest.mark.parametrize("take", [local, local_files])
@pytest.mark.parametrize("other", ["2.parquet", "2.jsonl"])
def test_files_of_a_corpus_have_one_column(
    tmp_path: Path, take: Callable[..., object], other: str
) -> None:
    table = pyarrow.table({"content": ["x", "y"], "n": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "1.parquet")
    if other.endswith("jsonl"):
        (tmp_path / other).write_text('{"text": "z"}\n')
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": ["z"], "id": ["1"]}), tmp_path / other)
    with pytest.raises(DataError, match=rf"'content'.*(got none|and 'text' in .*{other})"):
        take(tmp_path)
    (tmp_path / other).unlink()
    assert "text in column 'content'" in take(tmp_path).description


def test_string_that_is_not_utf8_is_told_by_its_row(tmp_path: Path) -> None:
    """In whatever row group, and from any place on."""
    offsets = pyarrow.array([0, 1, 2, 4], "int32").buffers()[1]
    data = [None, offsets, pyarrow.py_buffer(b"abc\xff")]
    values = pyarrow.Array.from_buffers(pyarrow.string(), 3, data)
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), path, row_group_size=2)
    said = r"a\.parquet must hold UTF-8 in the column 'text', got byte 0xff in row 2, at offset 1"
    for place in (0, 2):
        with pytest.raises(DataError, match=said):
            list(reader(path).read(place))


def test_table_that_cannot_be_decoded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "a.parquet", table(["x"]))
    rows = reader(path)

    def refuse(*_: object, **__: object) -> None:
        raise pyarrow.ArrowNotImplementedError("Support for codec 'lzo' not built")

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", refuse)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet: .* codec 'lzo'"):
        list(rows.read())
    with pytest.raises(DataError, match=r"a\.parquet\.gz must be a plain Parquet file.*decompress"):
        reader(path.with_name("a.parquet.gz"))


def test_columns_and_fields_are_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": ["x", None], "b": ["y", "z"]}), path)
    assert texts(list(reader(path, "a").read())) == ["x", ""]
    lines = written(tmp_path, "a.jsonl", b'{"a": "x", "text": "no"}\n{"a": null}\n')
    assert texts(list(reader(lines, "a").read())) == ["x", ""]


def test_damaged_table_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", b"PAR1 and no more")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        list(reader(path).read())


@pytest.mark.parametrize(("suffix", "codec"), [(".gz", "gzip"), (".zst", "zstd")])
def test_compressed_file_is_what_it_holds(tmp_path: Path, suffix: str, codec: str) -> None:
    raw = json_lines([f"document {number}" for number in range(50)])
    cut = len(raw) // 2
    packed = b"".join(  # two members, as `cat` or a parallel compressor leave them
        pyarrow.compress(part, codec, asbytes=True) if codec == "zstd" else gzip.compress(part)
        for part in (raw[:cut], raw[cut:])
    )
    plain = reader(written(tmp_path, "a.jsonl", raw))
    path = written(tmp_path, f"a.jsonl{suffix}", packed)
    passages = list(plain.read())
    assert list(reader(path).read()) == passages
    assert list(reader(path).read(passages[30].place)) == passages[30:]
    assert files.size_of(path) == len(raw)
    for damaged in (packed[:-9], raw):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"a\.jsonl\{suffix} cannot be read: "):
            list(reader(path).read())


def test_separator_that_is_unknown_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="by-blank-line or by-endoftext, got 'by-page'"):
        reader(tmp_path / "a.txt", "by-page")
