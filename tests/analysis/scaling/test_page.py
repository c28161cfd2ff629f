"""The figures on the page about scaling are those that the code finds."""

from __future__ import annotations

import math
import re
from pathlib import Path

from mlx_pam.analysis.scaling.published import PERPLEXITIES, published_points
from mlx_pam.analysis.scaling.study import study
from mlx_pam.analysis.scaling.words import amount, percent, times

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"
COUNTS = {"nominal": "nominal", "exact": "total", "without the embedding": "body"}


def test_the_figures_on_the_page_are_true():
    text, found = PAGE.read_text("utf-8"), study(published_points())
    rows = {}
    for line in re.findall(r"^\| ((?:nominal|exact|without).*) \|$", text, re.M):
        name, *cells = line.split(" | ")
        rows[name] = cells
    for name, size in COUNTS.items():
        expected = []
        for quantity in ("loss", "perplexity"):
            slopes = [found.fit(family, quantity, size).line.slope for family in ("pam", "sam")]
            (crossing,) = found.crossings_of(quantity, size)
            ends = [pick(crossing.without.values()) for pick in (min, max)]
            expected += [f"{slope:.3f}".replace("-", "−") for slope in slopes]
            expected += [amount(crossing.parameters), " to ".join(map(amount, ends))]
        assert rows[name] == expected
    halves = [p.scale for p in found.of("pam") if p.sizes["body"] < p.sizes["total"] / 2]
    assert halves == ["5m", "10m", "25m", "50m"]
    (loss,), (perplexity,) = (found.crossings_of(q, "nominal") for q in ("loss", "perplexity"))
    words = " ".join(text.split())
    pam, sam = PERPLEXITIES["pam"], PERPLEXITIES["sam"]
    gaps = [math.log(p / s) for p, s in zip(pam, sam, strict=True)]
    for part in (
        f"the former at {loss.value:.2f} nats",
        f"lies {times(loss.factor)} times beyond it",
        f"anywhere from {amount(loss.interval.low)} parameters upwards",
        f"in {percent(loss.never)} of the samples the lines never meet",
        f"by a factor of {times(max(loss.without.values()) / min(loss.without.values()))},",
        f"disagree** by a factor of {loss.parameters / perplexity.parameters:.0f},",
        f"by {pam[0] / sam[0]:.1f} times in perplexity at 5m and {pam[-1] / sam[-1]:.1f} times at",
        f"it is {gaps[-2]:.3f} nats at 50m and {gaps[-1]:.3f} at 100m",
        f"{math.exp(gaps[-2]):.2f} and {math.exp(gaps[-1]):.2f} times in perplexity",
    ):
        assert part in words
