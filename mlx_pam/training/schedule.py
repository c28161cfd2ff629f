"""The learning rate of each step: a linear warm-up, then a cosine."""

from __future__ import annotations

import math

from mlx_pam.config import Recipe


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """The rate of update `step` (1, 2, ... `steps`).

    warm-up: peak * step / w up to step w; then floor + (peak - floor) * (1 + cos(pi * x)) / 2 with
    x = (step - 1 - w) / (steps - w) and floor = min_lr_ratio * peak. The step after the warm-up has
    the peak; the floor is what the step after the last would have, so no update is wasted on a
    rate of zero.
    """
    peak, warmup = recipe.peak_lr, recipe.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    floor = recipe.min_lr_ratio * peak
    progress = (step - 1 - warmup) / (steps - warmup)
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
