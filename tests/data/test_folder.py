"""Folders as corpora: every text file once, whatever leads to it, and what is left out counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpora import GPT2, Load, files, text_of

from mlx_pam.data.folder import list_files
from mlx_pam.data.streamed import Streaming, local_files, open_stream
from mlx_pam.errors import DataError


def names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in list_files(folder).files]


def test_linked_folders_are_read_once_and_circles_end(tmp_path: Path) -> None:
    outside = files(tmp_path / "outside", b="of b", sub__c="of c")
    folder = files(tmp_path / "in", z__a="of a")
    (folder / "linked").symlink_to(outside)
    (folder / "again").symlink_to(outside / "sub")
    (outside / "back").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (folder / "first").symlink_to(folder / "z")
    (folder / "file.txt").symlink_to(outside / "b.txt")
    assert names(folder) == ["again/c.txt", "file.txt", "linked/b.txt", "z/a.txt"]
    assert list_files(folder).left_out == [
        "1 links to nothing",
        "3 links to folders that are read already",
    ]


def test_what_is_left_out_is_counted(load: Load, tmp_path: Path) -> None:
    folder = files(tmp_path / "in", a="A", b="B")
    for name in (".hidden.txt", "one.md", "two.MD", "page.json", "Makefile"):
        (folder / name).write_text("other")
    told = "; left out: 1 hidden, 4 of other kinds (.md 2, no suffix 1, .json 1)"
    assert load(folder).description.endswith(told)
    assert local_files(folder).description.endswith(told)


def test_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(tmp_path, a="A", sub__b="B")

    def scandir(path: Path) -> object:
        if path.name == "sub":
            raise PermissionError(13, "Permission denied")
        return real(path)

    real = list_files.__globals__["os"].scandir
    monkeypatch.setattr("mlx_pam.data.folder.os.scandir", scandir)
    with pytest.raises(DataError, match="sub cannot be read: Permission denied"):
        list_files(folder)


@pytest.mark.parametrize("stream", [False, True])
def test_suffixes_know_no_case(load: Load, tmp_path: Path, stream: bool) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("A.JSONL", "b.ndjson"):
        (folder / name).write_text(
            "".join(json.dumps({"text": f"{name} {n}"}) + "\n" for n in "12")
        )
    (folder / "BOOK.TXT").write_text("book")
    whole = {"A.JSONL 1", "A.JSONL 2", "b.ndjson 1", "b.ndjson 2", "book"}
    if stream:
        corpus = open_stream(local_files(folder), GPT2, Streaming(2, 4))
        held_out = ["A.JSONL 1", "A.JSONL 2", "book", "b.ndjson 1"]
        assert GPT2.decode(corpus.validation).split("<|endoftext|>")[1:] == held_out
    else:
        corpus = load(folder)
        texts = [text_of(tokens) for tokens in (corpus.train, corpus.validation)]
        assert set("<|endoftext|>".join(texts).split("<|endoftext|>")) == whole


def held(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_text(f"text {number}")
    return folder


@pytest.mark.parametrize(
    ("unnamed", "told"),
    [
        (("Night Train.txt", "Snow.txt", "Wind.txt"), ""),
        (("The Acid Test.txt", "Snow.txt", "Wind.txt"), ""),
        (
            ("night-train.txt", "Snow.txt", "the_acid_test.txt"),
            (
                "; read as documents like the others, not as splits: 2 "
                "(night-train.txt, the_acid_test.txt)"
            ),
        ),
        (
            ("train.txt", "Wind.txt"),
            "; read as documents like the others, not as splits: 1 (train.txt)",
        ),
        (("train-00000-of-00002.txt", "train-00001-of-00002.txt"), ""),
    ],
)
def test_names_that_do_not_agree_decide_nothing(
    load: Load, tmp_path: Path, unnamed: tuple[str, ...], told: str
) -> None:
    folder = held(tmp_path / "in", *unnamed)
    corpus = load(folder)
    assert set(corpus.tokens) == {"train", "validation"}
    texts = f"{text_of(corpus.train)}<|endoftext|>{text_of(corpus.validation)}"
    assert sorted(texts.split("<|endoftext|>")) == [f"text {n}" for n in range(len(unnamed))]
    assert (
        corpus.description == f"{folder}, documents: train {len(unnamed) - 1}, validation 1{told}"
    )
    streamed = local_files(folder)
    assert [len(each) for each in streamed.readers.values()] == [len(unnamed)]
    assert streamed.description.endswith(f"files: {len(unnamed)}{told}")


def test_files_without_a_split_are_left_out_beside_splits_and_counted(
    load: Load, tmp_path: Path
) -> None:
    folder = held(tmp_path / "in", "LICENSE.txt", "wiki.train.txt", "books.train.txt", "valid.txt")
    corpus = load(folder)
    assert text_of(corpus.train) == "text 2<|endoftext|>text 1"
    assert text_of(corpus.validation) == "text 3"
    told = "; left out: 1 (LICENSE.txt) without the name of a split"
    assert corpus.description.endswith(told)
    assert local_files(folder).description.endswith(told)
