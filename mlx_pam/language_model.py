"""A model with everything that turns its numbers into text: configuration, tokenizer, backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_pam import checkpoint
from mlx_pam.config import ModelConfig, require
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
    """Read the model in a checkpoint folder, or in the newest checkpoint of a run folder.

    backend: "mlx", "torch", or "auto" for the better one here. Raises `CheckpointError` that names
    the missing or damaged file.
    """
    from mlx_pam.backend import get_backend
    from mlx_pam.data.tokenizer import get_tokenizer

    saved = checkpoint.load(path)
    tokenizer = get_tokenizer((saved.training or {}).get("tokenizer", "gpt2"))
    runtime = get_backend(backend)
    model = runtime.build(saved.config, saved.weights)
    return LanguageModel(saved.config, tokenizer, runtime, model, saved.path)


def newest_checkpoint(runs: Path | str = "runs") -> Path:
    """The checkpoint written last in any run folder of `runs`; without one, `CheckpointError`."""
    found = [path for run in Path(runs).glob("*/") if (path := checkpoint.find(run))]
    if not found:
        raise CheckpointError(
            f"there is no checkpoint in {runs}/: train a model with `mlx_pam train`, or name one "
            "with `--checkpoint DIR`"
        )
    return max(found, key=lambda path: path.stat().st_mtime)
