"""Texts of any bytes, in any files and folders, are refused by name or tokenised as they are."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from fuzz import mutations
from fuzz.attack import Random, attack, inputs, refused, write

from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.mixture import load_mixture
from mlx_pam.data.streamed import Streaming

WORDS = (
    "river ",
    "stone\n",
    "\n\n",
    "\r\n",
    "\r",
    "🙂",
    "漢字",
    "e\u0301",
    "\x00",
    " " * 9,
    "\ufeff",
)
WORDS += ("<|endoftext|>", "\n<|endoftext|>\n", " = Title = \n", "\u2028", "\x85", "'s", "1234")
SUFFIXES = (".txt", ".jsonl", ".json", ".parquet", ".txt.gz", ".jsonl.gz", ".txt.zst", ".csv", "")
STEMS = ("train", "valid", "test", "corpus", "a.train", "dev-00001", "\n", "ü", ":x", "a*2")
HOW = ("", "", ":by-blank-line", ":by-endoftext", ":text", ":other", ":", ":train.txt")


def text(random: Random) -> str:
    return "".join(random.choices(WORDS, k=random.choice((0, 1, 5, 60))))


def parquet(random: Random, texts: list[str]) -> bytes:
    file = io.BytesIO()
    columns = {random.choice(("text", "other", "line")): texts, "number": list(range(len(texts)))}
    if random.random() < 0.3:
        columns["second"] = [*texts[:-1], None]
    compression = random.choice(("none", "snappy", "zstd", "gzip"))
    pyarrow.parquet.write_table(pyarrow.table(columns), file, 3, compression=compression)
    return file.getvalue()


def contents(random: Random, suffix: str) -> bytes:
    """What a file of this name may hold: mostly what it should, sometimes damaged."""
    texts = [text(random) for _ in range(random.choice((1, 2, 25)))]
    if ".json" in suffix:
        rows = [{"text": one, "n": 1} for one in texts]
        if random.random() < 0.3:
            rows = [mutations.of_record(random, row) for row in rows]
        raw = b"\n".join(map(mutations.to_json, rows))
    elif suffix == ".parquet":
        raw = parquet(random, texts)
    else:
        raw = "".join(texts).encode()
    if random.random() < 0.25:
        raw = mutations.of_bytes(random, raw)
    if suffix.endswith(".gz"):
        raw = gzip.compress(raw)
    elif suffix.endswith(".zst"):
        raw = pyarrow.Codec("zstd").compress(raw, asbytes=True)
    return mutations.of_bytes(random, raw) if random.random() < 0.25 else raw


def one_corpus(folder: Path, random: Random) -> None:
    """A file or a folder of some; what is taken comes back as text, split for split."""
    shutil.rmtree(folder, ignore_errors=True)
    files = folder / "files"
    files.mkdir(parents=True)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        suffix = random.choice(SUFFIXES)
        path = files / (random.choice(STEMS) + suffix)
        kind = random.randrange(30)
        if kind == 0:
            path.exists() or path.is_symlink() or path.mkdir()
        elif kind == 1:
            path.unlink(missing_ok=True) if path.is_file() else None
            path.is_dir() or path.symlink_to(random.choice((path, files, "gone", "/dev/zero")))
        elif kind == 2:
            path.exists() or os.mkfifo(path)
        elif not path.is_dir():
            write(path, contents(random, suffix))
    there = sorted(files.iterdir())
    path = random.choice(there) if there and random.random() < 0.5 else files
    name = str(path) + random.choice(HOW)

    def take() -> None:
        if random.random() < 0.3:
            mixture = load_mixture(name, gpt2(), Streaming(random.choice((1, 4)), 2))
            mixture.require(4)
            mixture.batches(4, 2, seed=0).next()
        else:
            corpus = load_corpus(name, gpt2(), folder / "cache", progress=False)
            for split, size in corpus.bytes.items():
                ids = corpus.split(split)
                assert (np.asarray(ids) < gpt2().vocab_size).all()
                documents = itertools.groupby(ids, lambda token: token == gpt2().end_of_text)
                texts = [gpt2().decode(part) for joint, part in documents if not joint]
                assert sum(len(one.encode()) for one in texts) == size

    refused(take)


@inputs(200, 3_000)
def test_odd_corpora(tmp_path, monkeypatch, count):
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "corpora" / "cache"))
    attack("corpora", count, partial(one_corpus, tmp_path / "corpora"))


def one_kept(text: Path, cache: Path, record: dict, random: Random) -> None:
    """Tokens that were kept and then damaged are made anew; what they are does not change."""
    (kept,) = (path for path in (cache / "tokens").iterdir())
    file = random.choice(sorted(kept.iterdir()))
    if file.suffix == ".json":
        write(file, mutations.of_json(random, record))
    else:
        write(file, file.read_bytes()[: random.randrange(3)])
    corpus = load_corpus(str(text), gpt2(), cache, progress=False)
    assert corpus.split("train").dtype == np.uint16


@inputs(46, 1_000)
def test_damaged_tokens(tmp_path, count):
    path, cache = tmp_path / "corpus.txt", tmp_path / "cache"
    path.write_text("river stone cloud " * 40)
    load_corpus(str(path), gpt2(), cache, progress=False)
    (record,) = (cache / "tokens").glob("*/corpus.json")
    attack("tokens", count, partial(one_kept, path, cache, json.loads(record.read_bytes())))
