"""Tokens on the disk: right, or built again, and never half."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from corpora import GPT2, Load, files, text_of

from mlx_pam.cache import cache_folder
from mlx_pam.data import store
from mlx_pam.data.corpus import load_corpus
from mlx_pam.errors import DataError


def test_second_load_does_not_tokenise(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files(tmp_path, a="some text\n" * 50) / "a.txt"
    first = load(path)
    monkeypatch.setattr(store, "_tokenise", None)
    second = load(path)
    assert second.fingerprint == first.fingerprint
    assert second.bytes == first.bytes
    np.testing.assert_array_equal(second.train, first.train)
    assert isinstance(second.train, np.memmap)


def test_changed_text_of_the_same_size_and_time_is_tokenised_again(
    load: Load, tmp_path: Path
) -> None:
    path = files(tmp_path, a="old words\n" * 50) / "a.txt"
    time = path.stat().st_mtime_ns
    old = load(path)
    path.write_text("new words\n" * 50)
    os.utime(path, ns=(time, time))
    new = load(path)
    assert new.fingerprint != old.fingerprint
    assert text_of(new.train).startswith("new words")
    assert text_of(old.train).startswith("old words"), "the map of the old text stays valid"


def test_fingerprint_follows_text_tokenizer_and_settings_not_the_path(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files(tmp_path, a="text\n" * 50) / "a.txt"
    moved = shutil.copy(path, tmp_path / "moved.txt")
    first = load(path).fingerprint
    assert load(moved).fingerprint == first
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    assert load(path).fingerprint != first
    monkeypatch.undo()
    monkeypatch.setattr(GPT2, "fingerprint", "another")
    assert load(path).fingerprint != first


def test_folder_of_another_text_is_not_used(load: Load, tmp_path: Path) -> None:
    """As when folders of the cache are copied and renamed by hand, or an older version wrote it."""
    one, two = (files(tmp_path / name, a=f"text of {name}\n" * 50) / "a.txt" for name in "xy")
    load(one)
    (first,) = (tmp_path / "cache" / store.FOLDER).iterdir()
    wanted = load(two).train.tolist()
    (second,) = {*first.parent.iterdir()} - {first}
    shutil.rmtree(second)
    shutil.copytree(first, second)
    assert load(two).train.tolist() == wanted
    record = second / store.RECORD
    record.write_text(json.dumps({**json.loads(record.read_text()), "fingerprint": None}))
    assert load(two).train.tolist() == wanted


@pytest.mark.parametrize("damage", ["shorter", "no record", "bad record", "no tokens"])
def test_damaged_cache_is_built_again(load: Load, tmp_path: Path, damage: str) -> None:
    path = files(tmp_path, a="some text\n" * 50) / "a.txt"
    whole = load(path).train.tolist()
    (record,) = (tmp_path / "cache").rglob(store.RECORD)
    tokens = record.with_name("train.bin")
    match damage:
        case "shorter":
            tokens.write_bytes(tokens.read_bytes()[:-2])
        case "no record":
            record.unlink()
        case "bad record":
            record.write_text(json.dumps({"tokens": {}}))
        case "no tokens":
            tokens.unlink()
    assert load(path).train.tolist() == whole


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_tokenising_leaves_nothing(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = files(tmp_path, a="some text\n" * 50) / "a.txt"

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(store, "_encode", fail)
    with pytest.raises((KeyboardInterrupt, DataError)) as raised:
        load(path)
    assert raised.type is KeyboardInterrupt or "No space left" in str(raised.value)
    assert list((tmp_path / "cache" / store.FOLDER).iterdir()) == []
    monkeypatch.undo()
    assert text_of(load(path).train).startswith("some text")


def test_another_process_that_was_faster_wins(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files(tmp_path, a="some text\n" * 50) / "a.txt"
    tokenise = store._tokenise

    def slowly(*settings: object) -> object:
        record = tokenise(*settings)
        monkeypatch.setattr(store, "_tokenise", tokenise)
        load(path)  # meanwhile
        return record

    monkeypatch.setattr(store, "_tokenise", slowly)
    assert text_of(load(path).train).startswith("some text")
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


def test_cache_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = files(tmp_path, a="text") / "a.txt"
    with pytest.raises(DataError, match="MLX_PAM_CACHE"):
        load_corpus(str(path), GPT2, path)


def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MLX_PAM_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "mlx_pam"
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "own"))
    load_corpus(str(files(tmp_path, a="text") / "a.txt"), GPT2)
    assert list((tmp_path / "own").rglob(store.RECORD))


def test_batches_do_not_change_the_tokens(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(
        tmp_path / "in", **{f"{n:02}": f"words of {n}, more of it\n" * n for n in range(9)}
    )
    whole = load(folder).train.tolist()
    monkeypatch.setattr(store, "BATCH", 1)
    shutil.rmtree(tmp_path / "cache")
    assert load(folder).train.tolist() == whole


def test_large_vocabulary_takes_wider_tokens(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GPT2, "vocab_size", 2**16 + 1)
    assert load(files(tmp_path, a="text\n" * 50) / "a.txt").train.dtype == np.uint32
