"""What a run will be, known and printed before its first step."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from mlx_pam import checkpoint, processes
from mlx_pam.config import ModelConfig, Recipe, TrainConfig, recipe_for, require
from mlx_pam.data.batches import Batches
from mlx_pam.data.mixture import Mixture, load_mixture
from mlx_pam.data.streamed import Streaming
from mlx_pam.data.tokenizer import Tokenizer, get_tokenizer
from mlx_pam.errors import ConfigError
from mlx_pam.parameters import parameter_count


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run with everything that was left open filled in."""

    config: TrainConfig
    model: ModelConfig
    tokenizer: Tokenizer
    corpus: Mixture
    steps: int
    recipe: Recipe
    parameters: int
    windows_per_epoch: int | None
    """None where a text is read as it is needed: its length is not known."""

    @property
    def last_step(self) -> int:
        """Where this session ends: the schedule's end, or `stop_after` if that comes first."""
        return min(self.steps, self.config.stop_after or self.steps)

    @property
    def checkpoint_bytes(self) -> int:
        tokenizer = sum(map(len, self.tokenizer.files.values()))
        return checkpoint.size_on_disk(self.parameters) + tokenizer

    @property
    def disk_bytes(self) -> int:
        """Most that checkpoints take at once: those kept, the best, and the one being written."""
        best = 1 if self.config.eval_every else 0
        return (self.config.keep + best + 1) * self.checkpoint_bytes

    def batches(self) -> Batches:
        config = self.config
        return self.corpus.batches(config.seq_len, config.batch_size, config.seed)

    def require_disk(self) -> None:
        """Raise `ConfigError` unless the disk has room for the checkpoints that are yet to come."""
        run = self.config.run_folder
        there = 0
        if self.config.resume:
            there = len(checkpoint.complete_checkpoints(run)) * self.checkpoint_bytes
        needed, free = self.disk_bytes - there, _free_disk(run)
        if free < needed:
            remedy = "free some" if self.config.resume else "free some, or give another --out"
            raise ConfigError(
                f"out must be on a disk with {decimal(needed)} free for checkpoints, got "
                f"{decimal(free)} at {run}: {remedy}"
            )

    def record(self) -> dict[str, Any]:
        """The plan as JSON can hold it."""
        return {
            "model": self.model.to_dict(),
            "parameters": self.parameters,
            "tokens": self.corpus.tokens,
            "steps": self.steps,
            "tokens_per_step": self.config.tokens_per_step,
            "recipe": asdict(self.recipe),
            "checkpoint_bytes": self.checkpoint_bytes,
            "disk_bytes": self.disk_bytes,
        }

    def describe(self, backend: str) -> str:
        """The lines that open a run."""
        c, r = self.config, self.recipe
        m = self.model
        windows = self.steps * c.windows_per_step
        data = self.corpus.describe(self.batches(), windows)
        whole = self.windows_per_epoch
        epochs = f" ({windows / whole:.3g} epochs)" if whole else ""
        variant = f" {c.variant}" if c.variant else ""
        free = _free_disk(c.run_folder)
        lines = {
            "backend": backend,
            "model": f"{m.model_type}{variant}, width {m.dim}, {m.num_layers} layers, "
            f"{m.num_heads} heads of {m.head_dim}: {self.parameters:,} parameters",
            "data": "\n         ".join(data),
            "steps": f"{self.steps:,}{epochs} of {c.tokens_per_step:,} tokens: "
            f"{c.accumulate} x {c.batch_size} windows of {c.seq_len}",
            "recipe": f"{r.name}: peak learning rate {r.peak_lr:g} ({r.lr_origin}), "
            f"{self._warmup()}, weight decay {r.weight_decay:g} on {r.decay}, "
            f"clip {r.clip_norm:g}, {c.dtype}",
            "disk": f"checkpoints of {decimal(self.checkpoint_bytes)}, {c.keep} kept"
            f"{', the best' if c.eval_every else ''} and one being written: "
            f"{decimal(self.disk_bytes)} in {c.run_folder} ({decimal(free)} free)",
        }
        return "\n".join(f"{label:<9}{text}" for label, text in lines.items())

    def _warmup(self) -> str:
        config, steps = self.config, self.recipe.warmup_steps
        full = recipe_for(config.recipe, config.model, config.scale).warmup_steps
        if config.warmup_steps is not None or steps == full:
            return f"warmup {steps}"
        return f"warmup {steps} (the recipe's {full} cut to a tenth of the steps)"


def make_plan(config: TrainConfig, model: ModelConfig | None = None) -> Plan:
    """Load the corpus and settle every number; raises before anything is built or written."""
    require(
        config.batch_size % processes.count() == 0,
        "batch_size",
        f"a multiple of {processes.count()}, the number of processes",
        config.batch_size,
    )
    model = model or config.model_config()
    tokenizer = get_tokenizer(config.tokenizer)
    require(
        model.vocab_size >= tokenizer.vocab_size,
        "vocab_size",
        f"at least {tokenizer.vocab_size}, the {tokenizer.name} tokenizer's",
        model.vocab_size,
    )
    streaming = Streaming(config.stream_buffer, config.stream_validation) if config.stream else None
    corpus = load_mixture(config.data, tokenizer, streaming)
    corpus.require(config.seq_len)
    batches = corpus.batches(config.seq_len, config.batch_size, config.seed)
    steps = config.schedule_steps(batches.per_epoch)
    return Plan(
        config=config,
        model=model,
        tokenizer=tokenizer,
        corpus=corpus,
        steps=steps,
        recipe=config.resolved_recipe(steps),
        parameters=parameter_count(model),
        windows_per_epoch=batches.per_epoch,
    )


def _free_disk(folder: Path) -> int:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
