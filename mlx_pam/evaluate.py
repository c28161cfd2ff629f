"""How well a model predicts a split: loss, perplexity and bits per byte, each with its protocol."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mlx_pam.config import recipe_for, require, require_choice, require_count
from mlx_pam.data.batches import validation_batches
from mlx_pam.errors import DataError

if TYPE_CHECKING:
    from mlx_pam.data.corpus import Corpus
    from mlx_pam.language_model import LanguageModel


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that is beyond a float."""
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Measure a checkpoint on a split of a corpus: every token but the first, each once."""

    checkpoint: Path
    """Checkpoint folder, RUN (its newest checkpoint) or RUN/best (its best)."""
    data: str = "sample"
    """Corpus: sample, wikitext-103, wikitext-2, hf:OWNER/NAME[:CONFIG], a file or a folder;
    ?column=NAME names its column of text."""
    split: Literal["train", "validation", "test"] = "validation"
    """Part of the corpus."""
    seq_len: int = 512
    """Window: tokens predicted from one empty memory; windows do not overlap."""
    batch_size: int = 8
    """Windows at once; does not change the result."""
    backend: Literal["auto", "mlx", "torch"] = "auto"
    """Array library that does the work."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of matrix products."""
    json: bool = False
    """Print the result as one JSON object."""

    def __post_init__(self) -> None:
        text = isinstance(self.data, str) and self.data.strip()
        require(bool(text), "data", "the name of a corpus", self.data)
        require_choice("split", self.split, ("train", "validation", "test"))
        require_choice("backend", self.backend, ("auto", "mlx", "torch"))
        require_choice("dtype", self.dtype, ("float32", "bfloat16"))
        require_count("seq_len", self.seq_len)
        require_count("batch_size", self.batch_size)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Figures and the protocol that gave them; a figure means nothing without it."""

    loss: float
    """Mean negative log-likelihood of a token, in nats."""
    perplexity: float
    """exp(loss)."""
    bits_per_byte: float
    """All tokens' negative log-likelihood in bits, by the UTF-8 bytes of the split's text."""
    data: str
    split: str
    tokens: int
    """Tokens predicted: all of the split but the first."""
    bytes: int
    window: int
    stride: int
    level: str = "token"
    tokenizer: str
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """Two lines: the figures, and the protocol."""
        return (
            f"loss {self.loss:.4f} · perplexity {self.perplexity:.2f} · "
            f"{self.bits_per_byte:.4f} bits per byte\n"
            f"on {self.data}, {self.split} split: {self.tokens:,} tokens ({self.bytes:,} bytes), "
            f"{self.level} level ({self.tokenizer}), window {self.window}, stride {self.stride}, "
            f"{self.dtype}"
        )


def split_loss(
    learner: Any,
    tokens: np.ndarray,
    seq_len: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> float | None:
    """Mean loss of every token but the first, each predicted once in windows from an empty memory.

    The weight of a token does not depend on the window or batch it falls in. `progress` is told the
    tokens done and all of them after each batch. None if interrupted.
    """
    total, done, count = 0.0, 0, len(tokens) - 1
    for batch, mask in validation_batches(tokens, seq_len, batch_size):
        if interrupted is not None and interrupted():
            return None
        total += learner.evaluate(batch, mask)
        done += int(mask.sum())
        if progress is not None:
            progress(done, count)
    return total / count


def evaluate(
    model: LanguageModel,
    corpus: Corpus,
    split: str = "validation",
    *,
    seq_len: int = 512,
    batch_size: int = 8,
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a model on one split of a corpus. Raises `DataError` if the split is too short."""
    tokens = corpus.split(split)
    if len(tokens) < 2:
        raise DataError(f"the {split} split of {corpus.name} must hold 2 tokens, got {len(tokens)}")
    any_recipe = recipe_for("tuned", "pam", "5m")  # nothing is updated
    learner = model.backend.Learner(model.model, any_recipe, dtype)
    size = corpus.bytes[split]
    count = len(tokens) - 1
    filled = min(seq_len, count)  # no room is made for tokens that are not there
    batch_size = min(batch_size, -(-count // filled))
    loss = split_loss(learner, tokens, filled, batch_size, progress)
    return Evaluation(
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=loss * count / math.log(2) / size,
        data=corpus.name,
        split=split,
        tokens=count,
        bytes=size,
        window=seq_len,
        stride=seq_len,
        tokenizer=model.tokenizer.name,
        dtype=dtype,
    )
