"""H12: markers, emoji, Arabic and NUL come back as they were; a bad byte is told by its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from new_process import Done, mlx_pam

from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import DataError

ODD = "plain <|endoftext|> 🙂👩‍👩‍👧 السلام عليكم \x00 end\n"


def test_odd_text_comes_back_and_the_marker_is_ordinary_text(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes((ODD * 50).encode())
    corpus = load_corpus(str(path), gpt2(), tmp_path / "cache")
    assert gpt2().decode([*corpus.train, *corpus.validation]) == ODD * 50
    assert gpt2().end_of_text not in corpus.train


@pytest.mark.parametrize("place", [0, 10, 95])
def test_bad_byte_is_an_error_with_file_and_offset(tmp_path: Path, place: int) -> None:
    path = tmp_path / "odd.txt"
    raw = (ODD * 50).encode()
    cut = len(raw) * place // 100
    cut = raw.index(b"plain", cut)
    path.write_bytes(raw[:cut] + b"\xff" + raw[cut:])
    with pytest.raises(DataError) as raised:
        load_corpus(str(path), gpt2(), tmp_path / "cache")
    assert f"{path} must be UTF-8, got byte 0xff at offset {cut} " in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def train(folder: Path, *words: str) -> Done[str]:
    way = {"folder": folder, "MLX_PAM_CACHE": str(folder / "cache")}
    return mlx_pam("train", "--steps", "1", "--out", "run", *words, **way)


def test_command_tells_file_and_offset_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_bytes(b"plain \xff")
    done = train(tmp_path, "--data", "odd.txt")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "odd.txt must be UTF-8, got byte 0xff at offset 6" in done.stderr
    assert done.stderr.count("\n") <= 2
