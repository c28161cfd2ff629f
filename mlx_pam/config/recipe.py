"""How the weights are moved: the recipes, which fill what a run's settings leave open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlx_pam.config.presets import Family, Scale
from mlx_pam.config.rates import packaged_rate, rate_from


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the weights are moved: AdamW and its schedule."""

    name: str
    peak_lr: float
    """Learning rate at the end of the warm-up."""
    lr_origin: str
    """Where `peak_lr` comes from, in a few words."""
    warmup_steps: int
    """Steps over which the learning rate rises from zero."""
    min_lr_ratio: float
    """The cosine falls towards this share of `peak_lr`."""
    weight_decay: float
    decay: Literal["matrices", "all"]
    """Which parameters the weight decay reaches (`parameters.is_decayed`), or all of them."""
    betas: tuple[float, float]
    adam_eps: float
    clip_norm: float
    """The gradient's global norm is cut to this."""
    epochs: int
    """Passes over the training split when no number of steps is given."""


RECIPES = ("tuned", "canonical")


def recipe_for(name: str, family: Family, scale: Scale, rates: Path | None = None) -> Recipe:
    """The recipe of this name for a model; a file of rates stands in for the package's own."""
    if name == "canonical":
        return _CANONICAL
    rate = rate_from(rates, family, scale) if rates else packaged_rate(family, scale)
    return Recipe(
        name="tuned",
        peak_lr=rate.value,
        lr_origin=rate.origin,
        warmup_steps=200,
        min_lr_ratio=0.1,
        weight_decay=0.1,
        decay="matrices",
        betas=(0.9, 0.95),
        adam_eps=1e-8,
        clip_norm=1.0,
        epochs=10,
    )


_CANONICAL = Recipe(  # Table 2 of the paper; batch 8 and length 512 are `TrainConfig`'s defaults
    name="canonical",
    peak_lr=3e-5,
    lr_origin="the paper's",
    warmup_steps=500,
    min_lr_ratio=0.0,
    weight_decay=0.01,
    decay="all",
    betas=(0.9, 0.999),
    adam_eps=1e-8,
    clip_norm=1.0,
    epochs=10,
)
