"""A model with everything that turns its numbers into text: configuration, tokenizer, backend."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_pam import checkpoint
from mlx_pam.config import VOCABULARIES, ModelConfig, require
from mlx_pam.errors import CheckpointError

if TYPE_CHECKING:
    from mlx_pam.backend import Backend
    from mlx_pam.data.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """What `generate`, `stream` and `evaluate` take; made by `load`, or around a live model."""

    config: ModelConfig
    tokenizer: Tokenizer
    backend: Backend
    model: Any
    """The backend's own module."""
    path: Path | None = None
    """The checkpoint folder that it was read from."""

    def __post_init__(self) -> None:
        require(
            self.config.vocab_size >= self.tokenizer.vocab_size,
            "vocab_size",
            f"at least {self.tokenizer.vocab_size}, the {self.tokenizer.name} tokenizer's",
            self.config.vocab_size,
        )

    def decoder(self, tokens: int = 0) -> Any:
        """A new decoder of this model, with a state of its own, for about so many tokens."""
        return self.backend.Decoder(self.model, tokens)


def load(path: Path | str, backend: str = "auto") -> LanguageModel:
    """Read the model in a checkpoint folder, in the newest one of RUN, or in the best: RUN/best.

    backend: "mlx", "torch", or "auto" for the better one here. Raises `CheckpointError` that names
    the missing or damaged file.
    """
    from mlx_pam.backend import get_backend
    from mlx_pam.data.tokenizer import get_tokenizer

    saved = checkpoint.load(path)
    tokenizer = get_tokenizer(_tokenizer_name(saved))
    runtime = get_backend(backend)
    model = runtime.build(saved.config, saved.weights)
    return LanguageModel(saved.config, tokenizer, runtime, model, saved.path)


def _tokenizer_name(saved: checkpoint.Checkpoint) -> str:
    """As `training.json` records it; a model without one has the tokenizer of its vocabulary."""
    if saved.training is not None:
        return saved.training.get("tokenizer", "gpt2")
    return "bytes" if saved.config.vocab_size == VOCABULARIES["bytes"].size else "gpt2"


def newest_run(runs: Path | str = "runs") -> Path:
    """The run folder in `runs` whose newest checkpoint was written last; or `CheckpointError`."""
    written = {run: _last_written(run) for run in Path(runs).glob("*/")}
    run = max(written, key=written.__getitem__, default=None)
    if run is None or written[run] < 0:
        raise CheckpointError(
            f"there is no checkpoint in {runs}/: train a model with `mlx_pam train`, or name one "
            "with `--checkpoint DIR`"
        )
    return run


def _last_written(run: Path) -> float:
    """When the newest checkpoint of a run was written; -1 if there is none."""
    with suppress(OSError):  # a run at work may just have removed it, for a newer one
        if path := checkpoint.find(run):
            return path.stat().st_mtime
        return -1.0
    return run.stat().st_mtime
