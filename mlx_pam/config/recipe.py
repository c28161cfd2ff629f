"""How the weights are moved: the recipes, which fill what a run's settings leave open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mlx_pam.config.presets import Scale


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the weights are moved: AdamW and its schedule."""

    name: str
    peak_lr: float
    """Learning rate at the end of the warm-up."""
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


# 5m by search (benchmarks/results/lr_search.jsonl): 4e-3 to 1.6e-2 lie within 0.04 nats, and a long
# run wants the lowest. The others fall with the width; they are not searched yet.
TUNED_PEAK_LR: dict[Scale, float] = {
    "300k": 4e-3,
    "1m": 3e-3,
    "3m": 2.5e-3,
    "5m": 4e-3,
    "10m": 3e-3,
    "25m": 2e-3,
    "50m": 1.5e-3,
    "100m": 1e-3,
}


def _tuned(scale: Scale) -> Recipe:
    return Recipe(
        name="tuned",
        peak_lr=TUNED_PEAK_LR[scale],
        warmup_steps=200,
        min_lr_ratio=0.1,
        weight_decay=0.1,
        decay="matrices",
        betas=(0.9, 0.95),
        adam_eps=1e-8,
        clip_norm=1.0,
        epochs=10,
    )


_CANONICAL = Recipe(  # Table 2 of the paper; batch 8 and length 512 are the defaults below
    name="canonical",
    peak_lr=3e-5,
    warmup_steps=500,
    min_lr_ratio=0.0,
    weight_decay=0.01,
    decay="all",
    betas=(0.9, 0.999),
    adam_eps=1e-8,
    clip_norm=1.0,
    epochs=10,
)

RECIPES: dict[str, dict[Scale, Recipe]] = {
    "tuned": {scale: _tuned(scale) for scale in get_args(Scale)},
    "canonical": dict.fromkeys(get_args(Scale), _CANONICAL),
}
