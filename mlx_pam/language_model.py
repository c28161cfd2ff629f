"""A model with everything that turns its numbers into text: configuration, tokenizer, backend."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_pam import checkpoint
from mlx_pam.checkpoint import Checkpoint
from mlx_pam.config import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARIES,
    ModelConfig,
    TokenizerFile,
    require,
    require_choice,
)
from mlx_pam.errors import CheckpointError, ConfigError

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

    saved = checkpoint.load(path)
    tokenizer = _tokenizer(saved)
    runtime = get_backend(backend)
    model = runtime.build(saved.config, saved.weights)
    return LanguageModel(saved.config, tokenizer, runtime, model, saved.path)


def _tokenizer(saved: Checkpoint) -> Tokenizer:
    """The tokenizer that `training.json` names: a built-in one, or that of the folder.

    Where nothing is named it is that of the folder, or else the built-in one of this vocabulary.
    """
    from mlx_pam.data.tokenizer import get_tokenizer

    training = saved.training or {}
    is_bytes = saved.config.vocab_size == VOCABULARIES["bytes"].size
    default = TOKENIZER if TOKENIZER in saved.tokenizer else "bytes" if is_bytes else "gpt2"
    name = training.get("tokenizer", "gpt2") if training else default
    require_choice(f"tokenizer of {saved.path}", name, (*VOCABULARIES, TOKENIZER))
    if name in VOCABULARIES:
        return get_tokenizer(name)
    path = saved.path / TOKENIZER
    if TOKENIZER not in saved.tokenizer:
        raise CheckpointError(f"{path} is missing: restore it, or take another checkpoint")
    try:
        raw, settings = (saved.tokenizer.get(name) for name in (TOKENIZER, TOKENIZER_CONFIG))
        file = TokenizerFile.of(raw, settings, path)
    except ConfigError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    data = training.get("data")
    trained = data.get("tokenizer_fingerprint") if isinstance(data, dict) else None
    if trained not in (None, file.fingerprint):
        raise CheckpointError(
            f"{path} or {TOKENIZER_CONFIG} beside it is damaged: it is not the tokenizer that the "
            "model was trained with; take another checkpoint"
        )
    return get_tokenizer(file)


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
