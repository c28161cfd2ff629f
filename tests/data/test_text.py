"""Files as streams of text: the same whatever the blocks, a bad byte found wherever it is."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.data import files as module
from mlx_pam.data.text import TextRange
from mlx_pam.errors import DataError

BLOCKS = pytest.mark.parametrize("block", [1, 2, 3, 5, 1 << 20])


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(raw)
    return path


@BLOCKS
def test_mark_is_dropped_and_crlf_is_lf(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    path = written(tmp_path, "\ufeffone\r\ntwo\r\r\n🙂\ufeff\x00\r".encode())
    assert "".join(TextRange.of(path)) == "one\ntwo\r\n🙂\ufeff\x00\r"


@given(st.text(), st.binary(max_size=4), st.text(), st.integers(1, 9))
def test_first_bad_byte_is_told_by_its_offset(
    tmp_path_factory: pytest.TempPathFactory, before: str, bad: bytes, after: str, block: int
) -> None:
    raw = before.encode() + bad + after.encode()
    path = written(tmp_path_factory.getbasetemp(), raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            said = f"0x{raw[error.start]:02x} at offset {error.start} "
            with pytest.raises(DataError) as raised:
                list(TextRange.of(path))
            assert said in str(raised.value)
            assert str(path) in str(raised.value)
        else:
            "".join(TextRange.of(path))


def test_digest_is_that_of_the_text_not_of_the_mark(tmp_path: Path) -> None:
    path = written(tmp_path, "x\ufefftext".encode())
    inside = TextRange.of(path, 1)
    assert "".join(inside) == "\ufefftext"
    assert TextRange.of(written(tmp_path, "\ufefftext".encode())).digest != inside.digest


def test_offset_counts_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, b"0123456789\xff")
    with pytest.raises(DataError, match="offset 10 "):
        list(TextRange.of(path, 4))


def test_file_that_changes_between_digest_and_reading_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, b"one text")
    seen = TextRange.of(path)
    path.write_bytes(b"two text")
    with pytest.raises(DataError, match="changed"):
        list(seen)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt cannot be read: No such file"):
        TextRange.of(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (gzip.compress(b"text"), r"gzip: .* ends in \.gz"),
        (bz2.compress(b"text"), "bzip2: decompress"),
        (lzma.compress(b"text"), "xz: decompress"),
        ("text".encode("utf-16"), "UTF-16: convert"),
        ("text".encode("utf-32"), "UTF-32: convert"),
        (b"PAR1\xff", r"Parquet: .*\.parquet"),
    ],
    ids=["gzip", "bzip2", "xz", "UTF-16", "UTF-32", "Parquet"],  # of no bytes: gzip's have the time
)
def test_file_that_is_something_else_is_named(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=rf"a\.txt must be UTF-8, got {said}"):
        list(TextRange.of(path))
