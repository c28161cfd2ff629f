"""A model and a corpus so small that a whole run takes seconds; imported by tests of training."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_pam import blas, checkpoint
from mlx_pam.config import ModelConfig, PAMConfig, TrainConfig, TransformerConfig
from mlx_pam.training.loop import TrainResult, train
from mlx_pam.training.metrics import read_log

TINY = PAMConfig(dim=8, num_layers=2, num_heads=2, head_dim=4)
TINY_TRANSFORMER = TransformerConfig(dim=8, num_layers=2, num_heads=2, head_dim=4)

WORDS = ["river", "stone", "cloud", "wind", "runs", "falls", "over", "under", "green", "old"]


def write_corpus(folder: Path, words: int = 2000) -> Path:
    """A text of common words in a fixed random order, whose unigrams are soon learned."""
    drawn = np.random.default_rng(5).choice(WORDS, words)
    path = folder / "corpus.txt"
    path.write_text(" ".join(drawn), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A text file to train on, tokenised into a cache of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_PAM_CACHE", str(folder / "cache"))
        yield write_corpus(folder)


def small(corpus: Path, out: Path, **changes: Any) -> TrainConfig:
    """A run of 20 updates on two windows of 8 tokens, without evaluation and samples."""
    settings: dict[str, Any] = {
        "data": str(corpus), "out": out, "steps": 20, "seq_len": 8, "batch_size": 2, "lr": 1e-2,
        "eval_every": 0, "save_every": 0, "sample_every": 0, "seed": 1,
        "backend": "mlx",
    }  # fmt: skip
    return TrainConfig(**settings | changes)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """No `torch.compile` inside: it takes a minute a process, and gives up after some models."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """MLX's CPU as the default device inside: there sums have one order, and runs are compared."""
    blas.preload()  # before MLX is loaded, as a run does: another BLAS rounds otherwise
    import mlx.core as mx

    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    try:
        yield
    finally:
        mx.set_default_device(before)


def run(corpus: Path, out: Path, config: ModelConfig = TINY, **changes: Any) -> TrainResult:
    """A whole run; a deterministic one on the default device, any other on the CPU."""
    place = contextlib.nullcontext() if changes.get("deterministic") else on_cpu()
    with eager(), place:
        return train(small(corpus, out, **changes), config)


MEASURED = {"time", "elapsed", "tokens_per_s", "peak_memory"}
"""What a log says of time and memory, which are never the same twice."""


def curve(out: Path) -> list[dict[str, Any]]:
    """All that a run's log says of its steps, evaluations and samples, but for time and memory."""
    events = ("step", "skipped", "evaluation", "sample")
    kept = [record for record in read_log(out) if record["event"] in events]
    return [{key: r[key] for key in r.keys() - MEASURED} for r in kept]


def assert_same_run(one: Path, other: Path) -> None:
    """Both runs have, to the bit, the same curve and the same newest and best checkpoint."""
    assert curve(other) == curve(one)
    assert checkpoint.best(other) == checkpoint.best(one)
    assert_same_checkpoint(one, other)
    if checkpoint.best(one):
        assert_same_checkpoint(one / "best", other / "best")


def assert_same_checkpoint(one: Path, other: Path) -> None:
    first, second = (checkpoint.load(path, optimizer=True) for path in (one, other))
    for expected, found in ((first.weights, second.weights), (first.optimizer, second.optimizer)):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    own = {"elapsed", "config"}  # where it was saved, and how long that took
    records = [{k: c.training[k] for k in c.training.keys() - own} for c in (first, second)]
    assert records[1] == records[0]
