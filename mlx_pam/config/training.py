"""Every setting of a training run, stated once."""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mlx_pam.config.mixture import shares
from mlx_pam.config.model import MemoryConfig, ModelConfig
from mlx_pam.config.presets import PRESETS, Family, Scale
from mlx_pam.config.recipe import RECIPES, Recipe, recipe_for
from mlx_pam.config.rules import (
    require,
    require_below,
    require_choice,
    require_count,
    require_range,
)
from mlx_pam.config.tokenizer_file import TOKENIZER, read_tokenizer_file
from mlx_pam.config.variants import VARIANTS, VariantName, variant
from mlx_pam.config.vocabulary import VOCABULARIES, Vocabulary
from mlx_pam.paths import expand_home

Tracker = Literal["wandb", "tensorboard", "trackio"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train a model: checkpoints, a log and samples go to one run folder."""

    model: Family = "pam"
    """Family: pam (complex-valued), sam (its real-valued twin, in the paper's sizes), sam-matched
    (the twin with the layers, heads, state and parameters of pam) or transformer (the baseline)."""
    scale: Scale = "5m"
    """Parameters of the model: 300k to 3m without the embedding, 5m to 100m all of them."""
    variant: VariantName | None = None
    """Change of pam and sam: an ablation of the paper's, or what goes beyond it (recall,
    smooth-phase)."""
    protect: Literal["head", "channel"] = "head"
    """Gate of pam and sam: one per head (the paper's equations) or one per head and channel."""
    reset_at_documents: bool = False
    """Make the memory of pam and sam forget, at each end-of-text token, all that came before."""
    data: str = "sample"
    """sample, wikitext-103 or -2, hf:OWNER/NAME[:CONFIG], file, folder, or mixture: A*0.3,B*0.7;
    ?column=NAME names the column of text, and of a data set of the hub ?split=NAME the split."""
    tokenizer: str = "gpt2"
    """gpt2 (50,257 tokens), bytes (UTF-8 as it is, 257 tokens), or a Hugging Face tokenizer.json,
    or a folder that holds one; a checkpoint of the run carries it."""
    stream: bool = False
    """Read the data as it is needed, from hub or files, and store none of it; needs --steps."""
    stream_buffer: int = 4096
    """With --stream: windows that are shuffled together, and kept in memory."""
    stream_validation: int = 200
    """With --stream: documents that are held out for validation."""
    out: Path | None = None
    """Run folder; by default runs/MODEL-SCALE-DATA, or MODEL-VARIANT-SCALE-DATA-TOKENIZER."""
    steps: int | None = None
    """Updates in the whole schedule; by default the recipe's epochs."""
    seq_len: int = 512
    """T, tokens in a window."""
    batch_size: int = 8
    """Windows in a micro-batch: what is in memory at once, of all processes together."""
    accumulate: int = 1
    """Micro-batches in an update; batch 2 x 4 trains as 8 x 1 does, in a quarter of the memory."""
    gradient_checkpointing: bool = False
    """Keep only what goes into each block, and compute the block anew when its gradient is due."""
    deterministic: bool = False
    """Sum gradients in a fixed order, so that a run repeats to the bit on a GPU as on a CPU."""
    memory_limit: float | None = None
    """GB that a process may take, by default the machine's; a run that needs more is refused."""
    recipe: Literal["tuned", "canonical"] = "tuned"
    """tuned: AdamW (0.9, 0.95), a rate for each model and scale; canonical: the paper's."""
    rates: Path | None = None
    """File of peak learning rates that `mlx_pam sweep --search` wrote, in place of tuned's own."""
    lr: float | None = None
    """Peak learning rate; by default the recipe's."""
    weight_decay: float | None = None
    """Weight decay; by default the recipe's."""
    warmup_steps: int | None = None
    """Warmup; by default the recipe's (tuned 200, canonical 500), cut to a tenth of the steps."""
    clip_norm: float | None = None
    """Largest global norm of the gradient; by default the recipe's."""
    seed: int = 0
    """Decides the initial weights, the order of the data and the samples."""
    backend: Literal["auto", "mlx", "torch"] = "auto"
    """Array library that does the work."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp, the whole model in each process; fsdp, a part, for what is too large."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of matrix products; weights, residual stream and state stay float32."""
    eval_every: int = 500
    """Steps between evaluations of the full validation split, and one at the end; 0: never."""
    save_every: int = 500
    """Steps between checkpoints; 0: only when the run ends or is stopped."""
    sample_every: int = 5000
    """Steps between generated samples, and one at the end; 0: never."""
    sample_prompt: str = "The"
    """Text that the samples continue."""
    sample_tokens: int = 100
    """Tokens in a sample."""
    diagnostics_every: int = 0
    """Steps between looks into every block: sizes, open units, gates, gradient norms; 0: never."""
    track: tuple[Tracker, ...] = ()
    """Tracker that is told what log.jsonl is told; may be repeated."""
    keep: int = 2
    """Checkpoints kept beside the one with the best validation loss; older ones are removed."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite: stop the run, or skip that step's update."""
    max_skips: int = 10
    """With on_nonfinite skip: so many such steps in a row stop the run."""
    resume: bool = False
    """Continue from the newest checkpoint in the run folder."""
    overwrite: bool = False
    """Begin anew in a folder that holds a run, which is moved to old-1 in it (or old-2, ...)."""
    stop_after: int | None = None
    """Save and leave when this step is reached; the schedule stays that of all steps."""
    dry_run: bool = False
    """Print what the run would be, and leave."""
    json: bool = False
    """Print the result as one JSON object; progress goes to stderr."""

    def __post_init__(self) -> None:
        require_choice("model", self.model, get_args(Family))
        require_choice("scale", self.scale, get_args(Scale))
        named = isinstance(self.tokenizer, str) and self.tokenizer.strip()
        rule = f"gpt2, bytes, or a {TOKENIZER} or a folder that holds one"
        require(bool(named), "tokenizer", rule, self.tokenizer)
        require_choice("protect", self.protect, ("head", "channel"))
        gated = self.model != "transformer" or self.protect == "head"
        require(gated, "protect", "head with model transformer, which has no gate", self.protect)
        resettable = self.model != "transformer" or not self.reset_at_documents
        rule = "off with model transformer, which has no memory to reset"
        require(resettable, "reset_at_documents", rule, self.reset_at_documents)
        if self.variant is not None:
            require_choice("variant", self.variant, tuple(VARIANTS))
            free = self.protect == "head" or "protect" not in VARIANTS[self.variant].fields
            rule = f"head with variant {self.variant}, which sets it"
            require(free, "protect", rule, self.protect)
            variant(PRESETS[self.model][self.scale], self.variant)
        require(self.out != "", "out", "a folder, or None for the default", self.out)
        if self.out is not None:
            expand_home(self.out)
        require_choice("recipe", self.recipe, RECIPES)
        tabled = self.recipe == "tuned" or self.rates is None
        rule = f"absent with recipe {self.recipe}, which has one rate"
        require(tabled, "rates", rule, str(self.rates))
        require_choice("backend", self.backend, ("auto", "mlx", "torch"))
        require_choice("parallel", self.parallel, ("ddp", "fsdp"))
        require_choice("dtype", self.dtype, ("float32", "bfloat16"))
        require_choice("on_nonfinite", self.on_nonfinite, ("stop", "skip"))
        either = not (self.resume and self.overwrite)
        require(either, "overwrite", "off with resume, which goes on with the run", self.overwrite)
        text = isinstance(self.data, str) and self.data.strip()
        require(bool(text), "data", "the name of a corpus", self.data)
        shares(self.data)
        counts = ("seq_len", "batch_size", "accumulate", "keep", "sample_tokens", "max_skips")
        for name in (*counts, "stream_buffer", "stream_validation"):
            require_count(name, getattr(self, name))
        for name in ("eval_every", "save_every", "sample_every", "diagnostics_every", "seed"):
            require_count(name, getattr(self, name), least=0)
        require(not isinstance(self.track, str), "track", "a tuple of names", self.track)
        for name in self.track:
            require_choice("track", name, get_args(Tracker))
        for name in ("steps", "stop_after"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        ends = self.steps is not None or not self.stream
        require(ends, "steps", "given with stream, whose length is not known", self.steps)
        if self.warmup_steps is not None:
            require_count("warmup_steps", self.warmup_steps, least=0)
        for name in (*counts, "stream_buffer", "steps", "stop_after", "warmup_steps"):
            require_below(63, **{name: getattr(self, name)})
        if self.lr is not None:
            require_range("lr", self.lr, 0.0, 1.0, open_least=True)
        if self.weight_decay is not None:
            require_range("weight_decay", self.weight_decay, 0.0, 1.0)
        for name in ("clip_norm", "memory_limit"):
            if getattr(self, name) is not None:
                require_range(name, getattr(self, name), 0.0, open_least=True)

    @property
    def run_folder(self) -> Path:
        """Where checkpoints, log and samples go."""
        if self.out is not None:
            return expand_home(self.out)
        names = "+".join(_folder_name(share.name) for share in shares(self.data))
        model = f"{self.model}-{self.variant}" if self.variant else self.model
        tokenizer = "" if self.tokenizer == "gpt2" else f"-{_tokenizer_name(self.tokenizer)}"
        return Path("runs") / f"{model}-{self.scale}-{names[:100]}{tokenizer}"

    @property
    def windows_per_step(self) -> int:
        return self.batch_size * self.accumulate

    @property
    def tokens_per_step(self) -> int:
        return self.windows_per_step * self.seq_len

    def model_config(self) -> ModelConfig:
        """The preset of this family and scale, for this tokenizer, gate, resets and variant."""
        vocabulary = self.vocabulary()
        config = PRESETS[self.model][self.scale]
        config = dataclasses.replace(config, vocab_size=vocabulary.size)
        if isinstance(config, MemoryConfig):
            reset = vocabulary.end_of_text if self.reset_at_documents else None
            config = dataclasses.replace(config, protect=self.protect, reset_token=reset)
        return config if self.variant is None else variant(config, self.variant)

    def vocabulary(self) -> Vocabulary:
        """Of the tokenizer; raises `ConfigError` where that is no name and no file that fits."""
        if self.tokenizer in VOCABULARIES:
            return VOCABULARIES[self.tokenizer]
        return read_tokenizer_file(self.tokenizer).vocabulary

    def schedule_steps(self, windows_per_epoch: int) -> int:
        """Updates of the whole schedule: `steps`, or as many as the recipe's epochs need."""
        if self.steps is not None:
            return self.steps
        epochs = recipe_for(self.recipe, self.model, self.scale).epochs
        return -(-epochs * windows_per_epoch // self.windows_per_step)

    def resolved_recipe(self, steps: int) -> Recipe:
        """The recipe of a run of so many steps, with this configuration's own values in it."""
        rates = self.rates if self.lr is None else None
        recipe = recipe_for(self.recipe, self.model, self.scale, rates)
        settings: dict[str, Any] = {"warmup_steps": min(recipe.warmup_steps, steps // 10)}
        if self.lr is not None:
            settings["lr_origin"] = "--lr"
        own = {
            "peak_lr": self.lr,
            "weight_decay": self.weight_decay,
            "warmup_steps": self.warmup_steps,
            "clip_norm": self.clip_norm,
        }
        settings.update((name, value) for name, value in own.items() if value is not None)
        return dataclasses.replace(recipe, **settings)

    def to_dict(self) -> dict[str, Any]:
        """The record that `training.json` and the log hold."""
        paths = {"out": str(self.run_folder), "rates": self.rates and str(self.rates)}
        return dataclasses.asdict(self) | paths

    def command_line(self, **changes: Any) -> str:
        """The command that starts this run, with the changes given."""
        settings = dataclasses.replace(self, **changes)
        words = ["mlx_pam", "train"]
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if value == field.default:
                continue
            for one in value if isinstance(value, tuple) else (value,):
                words.append("--" + field.name.replace("_", "-"))
                words.extend([] if one is True else [str(one)])
        return shlex.join(words)


def _folder_name(corpus: str) -> str:
    """The name of a corpus as a part of a folder's."""
    name = corpus.removeprefix("hf:").rstrip("/")
    name = re.sub(r"(?i)\.(txt|jsonl|ndjson|parquet)(\.gz|\.zst)?$", "", name)
    if not corpus.startswith("hf:"):
        name = Path(name).name
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"


def _tokenizer_name(tokenizer: str) -> str:
    """The name of a tokenizer as a part of a folder's."""
    path = Path(tokenizer)
    if path.name == TOKENIZER:
        path = path.parent
    return re.sub(r"[^\w.-]+", "-", path.name.removesuffix(".json")).strip("-.") or "tokenizer"
