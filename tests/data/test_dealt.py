"""Documents of files: dealt to the splits by their number, none lost, none in both."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import GPT2, Load, files, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_pam.data import store
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.splits import deal
from mlx_pam.errors import DataError


def test_copy_of_a_held_out_document_is_not_trained_on_and_told(load: Load, tmp_path: Path) -> None:
    texts = {f"{number:02}": f"text {number}" for number in range(25)}
    plain = load(files(tmp_path / "plain", **texts))
    assert "copies" not in plain.description
    corpus = load(files(tmp_path / "copies", **texts | {"03": "text 19", "24": "text 19"}))
    assert text_of(corpus.validation) == "text 19"
    assert "text 19" not in text_of(corpus.train)
    assert text_of(corpus.train).count("<|endoftext|>") == 25 - 3 - 1
    assert corpus.description.endswith("; copies of held-out documents left out: 2")


def test_empty_documents_are_no_copies(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n' * 40 + '{"text": "one"}\n{"text": "two"}\n')
    corpus = load(tmp_path / "a.jsonl")
    assert "copies" not in corpus.description
    assert text_of(corpus.train) == "one<|endoftext|>two"


def test_copies_in_the_splits_that_a_corpus_comes_with_are_told_and_stay(
    load: Load, tmp_path: Path
) -> None:
    corpus = load(files(tmp_path / "in", **{"a.train": "one", "b.train": "two", "valid": "two"}))
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
    assert corpus.description == (
        f"{tmp_path}, files: train 30, text in column 'text', some documents held out"
    )


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
