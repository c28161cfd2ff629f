"""Every setting of a sweep, stated once: which runs it has, and what they share."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mlx_pam.config.presets import Family, Scale
from mlx_pam.config.rules import (
    require,
    require_below,
    require_choice,
    require_count,
    require_range,
)
from mlx_pam.config.training import TrainConfig
from mlx_pam.config.variants import VARIANTS
from mlx_pam.errors import ConfigError
from mlx_pam.paths import expand_home

SHARED = (
    "data", "tokenizer", "seq_len", "batch_size", "accumulate", "recipe", "rates", "backend",
    "dtype", "deterministic", "eval_every", "save_every", "sample_every", "diagnostics_every",
    "keep",
)  # fmt: skip
"""Settings that every run takes over as they stand."""
MOST_SEEDS = 1000
"""The standard deviation over so many is known to 2 %."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Train models of several families, scales and seeds on equally many tokens: a queue of runs.

    Each run is `mlx_pam train` in a process of its own, with a run folder MODEL-SCALE-seed-N, or
    MODEL-VARIANT-SCALE-seed-N. The same command again skips what is finished and goes on with what
    was begun; with more models, scales, variants or seeds it goes on to those.
    """

    models: str = "pam,sam,transformer"
    """Families, with commas between them: pam, sam, sam-matched, transformer."""
    scales: str = "300k,1m,3m"
    """Scales, with commas between them; those of `mlx_pam train --scale`."""
    variants: str = ""
    """Variants to train beside the plain models that can have them: see `mlx_pam train --help`."""
    seeds: int = 1
    """Runs of each model, at most 1,000: seeds 0, 1, ..."""
    tokens: int
    """Tokens that each run trains on, rounded to whole steps, which are the same for all runs."""
    out: Path
    """Folder of the sweep; each run has a run folder in it."""
    data: str = "sample"
    """What `mlx_pam train --data` takes."""
    tokenizer: str = "gpt2"
    """gpt2 (50,257 tokens), bytes (UTF-8 as it is, 257), or a tokenizer.json, or its folder."""
    seq_len: int = 512
    """T, tokens in a window."""
    batch_size: int = 8
    """Windows in a micro-batch."""
    accumulate: int = 1
    """Micro-batches in an update."""
    recipe: Literal["tuned", "canonical"] = "tuned"
    """tuned: AdamW (0.9, 0.95), a rate for each model and scale; canonical: the paper's."""
    rates: Path | None = None
    """File of peak learning rates that an earlier search wrote, in place of tuned's own."""
    search: str | None = None
    """Peak learning rates to find the best of for each model and scale, as in 1e-3,2e-3,4e-3."""
    search_tokens: int | None = None
    """Tokens of a run of the search; by default a fifth of a run's."""
    backend: Literal["auto", "mlx", "torch"] = "auto"
    """Array library that does the work."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of matrix products; weights, residual stream and state stay float32."""
    deterministic: bool = False
    """Sum gradients in a fixed order, so that runs repeat to the bit on a GPU as on a CPU."""
    eval_every: int = 500
    """Steps between evaluations of the full validation split, and one at the end."""
    save_every: int = 500
    """Steps between checkpoints; 0: only when a run ends or is stopped."""
    sample_every: int = 0
    """Steps between generated samples, and one at the end; 0: never."""
    diagnostics_every: int = 0
    """Steps between looks into every block; 0: never."""
    keep: int = 1
    """Checkpoints of a run that are kept beside the one with the best validation loss."""
    jobs: int = 1
    """Runs at once, each on its share of the CPU's cores; on a GPU leave it at 1."""
    dry_run: bool = False
    """Print the runs, their parameters, steps and learning rates, and leave."""
    json: bool = False
    """Print the result as one JSON object; progress goes to stderr."""

    def __post_init__(self) -> None:
        for name, known in (
            ("models", get_args(Family)),
            ("scales", get_args(Scale)),
            ("variants", tuple(VARIANTS)),
        ):
            words = _words(name, getattr(self, name))
            require(bool(words) or name == "variants", name, "at least one name", "none")
            for word in words:
                require_choice(name, word, known)
        for word in _words("variants", self.variants):
            possible = any(can_be(*named) for named in self._named() if named[-1] == word)
            rule = f"ones that at least one of {self.models} can have"
            require(possible, "variants", rule, word)
        require(isinstance(self.out, str | os.PathLike), "out", "a path", self.out)
        object.__setattr__(self, "out", expand_home(self.out))
        require_count("seeds", self.seeds, most=MOST_SEEDS)
        for name in ("tokens", "jobs", "seq_len", "batch_size", "accumulate", "eval_every"):
            require_count(name, getattr(self, name))
        most = self.seq_len * self.batch_size * self.accumulate
        for name in ("tokens", "search_tokens"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), least=most)
                require_below(63, **{name: getattr(self, name)})
        if self.search is None:
            alone = self.search_tokens is None
            require(alone, "search_tokens", "absent without search", self.search_tokens)
        else:
            require(bool(self.search_rates), "search", "at least one rate", "none")
            rule = "absent with search, which finds the rates"
            require(self.rates is None, "rates", rule, str(self.rates))
        next(self.runs())  # the settings that the runs share

    def runs(self) -> Iterator[TrainConfig]:
        """The runs, whose learning rates a search has yet to fill in where there is one.

        All of a scale come before those of the next, and all of a seed before those of the next:
        what is to be compared is done at about the same time. A variant that a model cannot have
        is left out.
        """
        shared = {name: getattr(self, name) for name in SHARED} | {"steps": self.steps}
        for scale in _words("scales", self.scales):
            kinds = [kind for kind in self._named() if kind[1] == scale and can_be(*kind)]
            for seed in range(self.seeds):
                for model, _, variant in kinds:
                    name = "-".join(filter(None, (model, variant, scale)))
                    yield TrainConfig(
                        model=model, scale=scale, variant=variant, seed=seed,
                        out=self.out / f"{name}-seed-{seed}", **shared,
                    )  # fmt: skip

    @property
    def left_out(self) -> list[str]:
        """MODEL-VARIANT of the pairs that cannot be."""
        pairs = ((m, v) for m, scale, v in self._named() if not can_be(m, scale, v))
        return list(dict.fromkeys("-".join(pair) for pair in pairs))

    def search_run(self, model: str, scale: str, rate: float) -> TrainConfig:
        """The run that tries a peak learning rate; it evaluates at its end."""
        shared = {name: getattr(self, name) for name in SHARED}
        own = {
            "steps": self.search_steps,
            "eval_every": self.search_steps,
            "sample_every": 0,
            "diagnostics_every": 0,
            "out": Path(self.out) / "search" / f"{model}-{scale}-lr-{rate}",
        }
        return TrainConfig(model=model, scale=scale, lr=rate, **shared | own)

    @property
    def search_rates(self) -> list[float]:
        """The rates that a search begins with, the lowest first."""
        rates = []
        for word in _words("search", self.search or ""):
            try:
                rate = float(word)
            except ValueError:
                rule = "learning rates with commas between them, as in 1e-3,2e-3,4e-3"
                raise ConfigError(f"search must be {rule}, got {self.search!r}") from None
            require_range("search", rate, 0.0, 1.0, open_least=True)
            rates.append(rate)
        return sorted(set(rates))

    @property
    def tokens_per_step(self) -> int:
        return self.seq_len * self.batch_size * self.accumulate

    @property
    def steps(self) -> int:
        """Updates of each run."""
        return round(self.tokens / self.tokens_per_step)

    @property
    def search_steps(self) -> int:
        """Updates of each run of the search."""
        tokens = self.search_tokens or self.tokens / 5
        return max(1, round(tokens / self.tokens_per_step))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them."""
        plain = {"out": str(self.out), "rates": self.rates and str(self.rates)}
        if self.search is not None:
            plain["search"] = ",".join(map(str, self.search_rates))
        return dataclasses.asdict(self) | plain

    def _named(self) -> Iterator[tuple[str, str, str | None]]:
        """Model, scale and variant of all that is named."""
        variants = (None, *_words("variants", self.variants))
        scales = _words("scales", self.scales)
        return itertools.product(_words("models", self.models), scales, variants)


def can_be(model: str, scale: str, variant: str | None) -> bool:
    """Whether a model has such a variant."""
    try:
        TrainConfig(model=model, scale=scale, variant=variant)
    except ConfigError:
        return False
    return True


def _words(name: str, text: str) -> list[str]:
    """What stands between commas; `ConfigError` for what stands there twice."""
    require(isinstance(text, str), name, "names with commas between them", text)
    words = [word.strip() for word in text.split(",") if word.strip()]
    twice = {word for word in words if words.count(word) > 1}
    require(not twice, name, "without repetitions", text)
    return words
