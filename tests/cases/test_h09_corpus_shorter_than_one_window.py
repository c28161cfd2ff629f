"""H09: a corpus shorter than one window is told before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from new_process import Done, mlx_pam

from mlx_pam.data.batches import require_tokens
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import DataError

TEN_WORDS = "one two three four five six seven eight nine ten"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"a.txt": TEN_WORDS}, "train 9, validation 1"),
        ({"a.txt": ""}, "train 0, validation 0"),
        ({"train.txt": "word " * 1000, "valid.txt": TEN_WORDS}, "train 1,001, validation 10"),
        ({"train.txt": "word " * 1000, "valid.txt": ""}, "train 1,001, validation 0"),
        ({"train.txt": TEN_WORDS, "valid.txt": "word " * 1000}, "train 10, validation 1,001"),
    ],
)
def test_tokens_found_and_needed_are_told_for_each_split(
    tmp_path: Path, texts: dict[str, str], found: str
) -> None:
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    corpus = load_corpus(str(tmp_path / next(iter(texts))), gpt2(), tmp_path / "cache")
    with pytest.raises(DataError) as raised:
        require_tokens(corpus, 512)
    assert f"must hold 513 tokens, found {found}" in str(raised.value)
    assert "\n" not in str(raised.value)


def train(folder: Path, *words: str) -> Done[str]:
    way = {"folder": folder, "MLX_PAM_CACHE": str(folder / "cache")}
    return mlx_pam("train", "--steps", "1", "--out", "run", *words, **way)


def test_command_ends_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEN_WORDS)
    done = train(tmp_path, "--data", "a.txt", "--seq-len", "512")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "must hold 513 tokens, found train 9, validation 1" in done.stderr
    assert done.stderr.count("\n") <= 2
    assert not (tmp_path / "run").exists()
