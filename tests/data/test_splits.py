"""Documents are dealt to splits by rules that depend on nothing but names, numbers and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_pam.data import splits as module
from mlx_pam.data.splits import cut_tail, deal, named_split


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.txt", "train"),
        ("train-00000-of-00002.txt", "train"),
        ("wiki.valid.txt", "validation"),
        ("Validation_3.txt", "validation"),
        ("my-dev.txt", "validation"),
        ("test.txt", "test"),
        ("testament.txt", None),
        ("test-ban-treaty.txt", None),
        ("strain.txt", None),
        ("1962-Kennedy-1.txt", None),
    ],
)
def test_files_are_named_for_splits_by_their_last_word(name: str, split: str | None) -> None:
    assert named_split(Path(name)) == split


@pytest.mark.parametrize("count", [2, 3, 19, 20, 21, 249, 10_001, 123_456])
def test_a_part_of_the_documents_is_held_out(count: int) -> None:
    dealt = deal(range(count))
    held = dealt["validation"]
    assert sorted([*dealt["train"], *held]) == list(range(count))
    assert 1 <= len(held) <= min(max(count // 20, 1), module.MOST_HELD_OUT)
    assert held[0] < count * 2 / len(held), "spread over the whole"


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        (b"line\n" * 200, b"line\n" * 20),
        (b"line\r\n" * 200, b"line\r\n" * 20),
        (b"word " * 200, b" word" * 20 + b" "),
        ("漢".encode() * 200, "漢".encode() * 20),
        (b"head\n" + b"x" * 995, b"x" * 100),
        (b"short", b""),
        (b"", b""),
    ],
)
def test_tail_of_a_file_begins_between_lines_words_or_characters(
    tmp_path: Path, text: bytes, tail: bytes
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    parts = cut_tail(path)
    (train,), (validation,) = parts["train"], parts["validation"]
    assert "".join([*train, *validation]) == text.decode().replace("\r\n", "\n")
    assert (train.start, train.end, validation.end) == (0, validation.start, len(text))
    assert text[validation.start :] == tail


def test_tail_of_a_large_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_TAIL", 50)
    path = tmp_path / "a.txt"
    path.write_bytes(b"line\n" * 2000)
    assert cut_tail(path)["validation"][0].size == 50
