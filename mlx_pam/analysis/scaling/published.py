"""The means that the paper publishes of its sweep, as points of scaling."""

from __future__ import annotations

import dataclasses
import math

from mlx_pam.analysis.scaling.points import Late, Point, sizes
from mlx_pam.config import PRESETS, Family, Scale

PERPLEXITIES: dict[Family, tuple[float, ...]] = {
    "pam": (258.9, 129.3, 75.3, 48.0, 35.2),
    "sam": (118.9, 69.8, 40.8, 35.8, 25.9),
}
"""Late-epoch means on WikiText-103, token level, one run each."""
NOMINAL: dict[Scale, int] = {
    "5m": 5_000_000, "10m": 10_000_000, "25m": 25_000_000, "50m": 50_000_000, "100m": 100_000_000,
}  # fmt: skip
"""Sizes as they are called; the paper's lines are drawn over these."""


def published_points() -> list[Point]:
    """One point for each family and scale; no deviations are published, so none is there.

    The loss is ln of the perplexity. Exact sizes are those with a gate for each channel, as the
    sweep ran.
    """
    return [
        Point(
            run=f"{family}-{scale}",
            family=family,
            scale=scale,
            sizes={"nominal": nominal}
            | sizes(dataclasses.replace(PRESETS[family][scale], protect="channel")),
            loss=Late(math.log(perplexity)),
            perplexity=Late(perplexity),
        )
        for family, perplexities in PERPLEXITIES.items()
        for (scale, nominal), perplexity in zip(NOMINAL.items(), perplexities, strict=True)
    ]
