"""Small corpora in files, and their tokens as text again; imported by tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mlx_pam.data.corpus import Corpus
from mlx_pam.data.gpt2 import gpt2

GPT2 = gpt2()
Load = Callable[..., Corpus]


def text_of(tokens: np.ndarray) -> str:
    return GPT2.decode(tokens)


def files(folder: Path, **texts: str) -> Path:
    """A folder of `.txt` files; `a__b` is the file b in a folder a."""
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.txt").write_bytes(text.encode())
    return folder


def shards(folder: Path, documents: list[list[str]]) -> Path:
    """A folder of JSON lines, every second file compressed."""
    for number, texts in enumerate(documents):
        raw = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path = folder / f"{number:02}.jsonl"
        if number % 2:
            path, raw = path.with_name(path.name + ".gz"), gzip.compress(raw)
        path.write_bytes(raw)
    return folder


def some(files: int, documents: int) -> list[list[str]]:
    """Documents of several files."""
    return [
        [f"{file} {number}" + " word" * (number * 7 % 13) for number in range(documents)]
        for file in range(files)
    ]


def texts_of(tokens: Sequence[int]) -> list[str]:
    """The documents, each of which an end-of-text token begins."""
    assert tokens[0] == GPT2.end_of_text
    return GPT2.decode(tokens[1:]).split("<|endoftext|>")
