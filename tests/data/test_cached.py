"""What is kept on the disk is listed with its size and age, and removed when it is named."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mlx_pam.cli import main
from mlx_pam.data.building import PREFIX
from mlx_pam.data.cached import cached, remove
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.store import FOLDER, RECORD
from mlx_pam.errors import DataError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two corpora, a folder of another version, and one that is being written."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MLX_PAM_CACHE", str(folder))
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"text of {name}\n" * 50)
        load_corpus(str(tmp_path / name), gpt2())
    (folder / FOLDER / "0123").mkdir()
    (folder / FOLDER / "0123" / "train.bin").write_bytes(b"old")
    (folder / FOLDER / f"{PREFIX}x").mkdir()
    return folder


def age(cache: Path, name: str, seconds: float) -> None:
    (path,) = (each.path for each in cached(cache) if each.name == name)
    for file in path.iterdir():
        os.utime(file, (time.time() - seconds,) * 2)
    os.utime(path, (time.time() - seconds,) * 2)


def test_corpora_are_listed_by_their_last_use(cache: Path, tmp_path: Path) -> None:
    for name, seconds in (("one.txt", 500), ("two.txt", 300), ("", 400)):
        age(cache, name, seconds)
    assert [each.name for each in cached(cache)] == ["two.txt", "", "one.txt"]
    corpus = load_corpus(str(tmp_path / "one.txt"), gpt2())
    found = cached(cache)
    assert [each.name for each in found] == ["one.txt", "two.txt", ""]
    assert found[0].unused < 100 < found[1].unused < 400
    assert found[0].fingerprint == corpus.fingerprint
    assert found[0].tokens == corpus.tokens
    assert found[0].text == corpus.description
    assert found[0].tokenizer == "gpt2"
    assert found[0].size > 2 * sum(corpus.tokens.values())
    assert found[2].fingerprint == "0123"


@pytest.mark.parametrize("record", ["", "[]", '{"name": 1, "tokens": []}', "\xff", "[" * 10**5])
def test_a_folder_whose_record_is_damaged_is_listed_too(cache: Path, record: str) -> None:
    (cache / FOLDER / "0123" / RECORD).write_bytes(record.encode("latin-1"))
    assert [each.fingerprint for each in cached(cache) if not each.name] == ["0123"]


@pytest.mark.parametrize(
    ("which", "left"), [("one.txt", ["two.txt", ""]), ("0123", ["one.txt", "two.txt"]), ("all", [])]
)
def test_what_is_named_is_removed_and_nothing_else(
    cache: Path, which: str, left: list[str]
) -> None:
    gone = remove(cache, which)
    assert len(gone) == 3 - len(left)
    assert sorted(each.name for each in cached(cache)) == sorted(left)
    assert (cache / FOLDER / f"{PREFIX}x").exists()


def test_a_map_in_use_outlives_its_file(cache: Path, tmp_path: Path) -> None:
    corpus = load_corpus(str(tmp_path / "one.txt"), gpt2())
    before = corpus.train.tolist()
    remove(cache, "all")
    assert corpus.train.tolist() == before
    assert load_corpus(str(tmp_path / "one.txt"), gpt2()).train.tolist() == before


@pytest.mark.parametrize("which", ["three.txt", "", "o", "01"])
def test_what_is_not_there_is_told_from_what_is(cache: Path, which: str) -> None:
    with pytest.raises(DataError, match=r"which are 0123, one\.txt, two\.txt, got"):
        remove(cache, which)
    assert len(cached(cache)) == 3


def test_command_lists_and_removes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    listed = capsys.readouterr().out
    assert "one.txt" in listed
    assert "(damaged, or of another version)" in listed
    assert "kept: 3 corpora" in listed
    assert main(["data", "--remove", "one.txt", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["name"] == "one.txt"
    assert not Path(record["path"]).exists()
    assert main(["data", "--remove", "one.txt"]) == 1
    assert "got 'one.txt'" in capsys.readouterr().err
    assert main(["data", "--remove", "all"]) == 0
    capsys.readouterr()
    assert main(["data"]) == 0
    assert "kept: 0 corpora, 0 bytes" in capsys.readouterr().out


def test_an_empty_cache_is_no_error(tmp_path: Path) -> None:
    assert cached(tmp_path / "nothing") == []
