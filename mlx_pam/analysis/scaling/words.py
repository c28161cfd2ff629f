"""What a study of scaling can say and what it cannot, in plain sentences made of its numbers."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator

from mlx_pam.analysis.scaling.points import Point, differences
from mlx_pam.analysis.scaling.resampling import LEAST_RUNS
from mlx_pam.analysis.scaling.study import QUANTITIES, Crossing, Study

COUNTED = {"total": "exactly,", "body": "without the embedding,"}
"""How parameters are counted, in words."""
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
FEW_SCALES = 3
"""Below so many a line cannot be told from a curve."""
UNEQUAL = 1.02
"""Ratio of the families' sizes at one scale from which on it is mentioned."""
APART = 2.0
"""Ratio of the crossings in loss and in perplexity from which on it is mentioned."""
ALIKE = 1.1
"""Ratio of the families' sizes at one scale up to which their losses there are compared."""
DECISIVE = 2.0
"""Effective runs below which one run decides a line."""


def amount(value: float) -> str:
    """Three digits and a prefix: 4.48 G, 551 M."""
    if not math.isfinite(value):
        return "∞"
    value = float(f"{value:.3g}")
    size, prefix = next((pair for pair in PREFIXES if value >= pair[0]), (1.0, ""))
    return f"{value / size:.3g} {prefix}".strip()


def times(factor: float) -> str:
    """A factor in as many digits as it is worth: 1.54, 8.4, 45, 1,200."""
    return f"{factor:.3g}" if factor < 2 else f"{float(f'{factor:.2g}'):,g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def sentences(study: Study) -> list[str]:
    """A sentence or two on each of: the runs, each line, crossings, what the counts do, floors."""
    parts = (_runs, _lines, _crossings, _agreement, _counts, _floors)
    return [sentence for part in parts for sentence in part(study)]


def _runs(study: Study) -> Iterator[str]:
    """How many, of what sizes; what of them cannot be compared."""
    size = study.sizes[0]
    numbers = [point.sizes[size] for point in study.points]
    text = (
        f"{_count(len(study.points), 'run')} of {_list(study.families)}, "
        + _span(amount(min(numbers)), amount(max(numbers)))
        + " parameters"
    )
    seeds, late = deviations(study)
    if seeds is None:
        text += ", one for each scale: how far another seed would move a point is not measured"
    elif late is not None:
        text += f"; seeds differ by {seeds:.2g} nats, a late window in itself by {late:.2g}"
    yield f"{text}."
    for name, values in differences(study.points).items():
        shown = values if len(values) <= 4 else [*values[:3], "…"]
        yield f"The runs differ in {name} ({', '.join(shown)}), which moves losses as size does."


def deviations(study: Study) -> tuple[float | None, float | None]:
    """Standard deviations of the loss between seeds of a scale, and within late windows, pooled."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in study.points:
        groups.setdefault((point.family, point.scale), []).append(point)
    seeds = [(len(g) - 1, statistics.variance([p.loss.mean for p in g])) for g in groups.values()
             if len(g) > 1]  # fmt: skip
    late = [(p.loss.count - 1, p.loss.deviation**2) for p in study.points if p.loss.deviation]
    pooled = [
        math.sqrt(sum(n * v for n, v in parts) / sum(n for n, _ in parts)) if parts else None
        for parts in (seeds, late)
    ]
    return pooled[0], pooled[1]


def _lines(study: Study) -> Iterator[str]:
    """Families whose lines are none, or worth little."""
    for family in study.families:
        fit = study.fit(family, "loss", study.sizes[0])
        if fit.line is None:
            yield f"{family} has one size, {fit.scales[0]}: a line needs two."
        elif len(fit.scales) < FEW_SCALES:
            yield (
                f"{family} has {len(fit.scales)} scales: a line always fits, and nothing shows "
                "whether losses fall along it."
            )
        elif fit.line.effective < DECISIVE:
            steadiest = min(study.of(family), key=lambda p: (p.loss.deviation or 0) / p.loss.mean)
            yield (
                f"The line of {family} is that of {fit.line.effective:.1f} runs, not of "
                f"{fit.runs}: most of the weight is that of {steadiest.run}, the steadiest late."
            )


def _crossings(study: Study) -> Iterator[str]:
    few = len(study.families) <= 2  # else the table has those in perplexity
    for quantity in QUANTITIES if few else QUANTITIES[:1]:
        for crossing in study.crossings_of(quantity, study.sizes[0]):
            gap = _gap(study, crossing) if quantity == "loss" else ""
            yield _crossing(crossing) + gap


def _crossing(c: Crossing) -> str:
    """Where two lines meet, how far that is from what was measured, and how sure."""
    a, b = c.families
    if c.kind == "parallel":
        return f"In {c.quantity} the lines of {a} and {b} are parallel: they meet nowhere."
    if c.kind == "before":
        return (
            f"In {c.quantity} the lines of {a} and {b} have met below the smallest model: to the "
            f"right there is no crossing, and {a} draws away."
        )
    text = f"In {c.quantity} {a} overtakes {b} at {amount(c.parameters)} parameters, "
    if c.kind == "within":
        text += "within the sizes measured"
    else:
        text += f"{times(c.factor)} times the largest model: an extrapolation, not a measurement"
    if c.interval is None:
        return f"{text}; fewer than {LEAST_RUNS} runs of a family say nothing of its error."
    low, high = c.interval.low, c.interval.high
    if math.isinf(high):
        text += (
            f"; resampled runs (95 %) put it anywhere from {amount(low)} upwards, and in "
            f"{percent(c.never)} of the samples it never comes"
        )
    else:
        decades = math.log10(high / low)
        text += f"; resampled runs (95 %) put it between {amount(low)} and {amount(high)}"
        text += f", {decades:.1f} decades: it is not located" if decades > 1 else ""
    return f"{text}.{_left_out(c)}"


def _gap(study: Study, c: Crossing) -> str:
    """A crossing ahead means a gap that narrows; said is where it does not at the largest sizes."""
    gaps = {}
    for scale in dict.fromkeys(point.scale for point in study.of(c.families[0])):  # rising
        pair = [[p for p in study.of(family) if p.scale == scale] for family in c.families]
        sizes = [of[0].sizes[c.size] for of in pair if of]
        if len(sizes) == 2 and max(sizes) <= ALIKE * min(sizes):
            losses = [statistics.fmean(point.loss.mean for point in of) for of in pair]
            gaps[scale] = losses[0] - losses[1]
    if c.kind != "beyond" or len(gaps) < FEW_SCALES:
        return ""
    (before, gap_before), (last, gap) = list(gaps.items())[-2:]
    if not 0 < gap_before <= gap:
        return ""
    return (
        f" Yet between the two largest, {before} and {last}, the gap does not narrow: it is "
        f"{gap_before:.3f} and {gap:.3f} nats."
    )


def _left_out(c: Crossing) -> str:
    """How far one scale moves a crossing."""
    if len(c.without) < FEW_SCALES:
        return ""
    low, high = (pick(c.without, key=c.without.__getitem__) for pick in (min, max))
    to = f"{amount(c.without[high])} (without {high})"
    if math.isinf(c.without[high]):
        to = f"nowhere at all (without {high})"
    return f" One scale left out moves it from {amount(c.without[low])} (without {low}) to {to}."


def _agreement(study: Study) -> Iterator[str]:
    """Perplexity is exp(loss), so that both cannot be straight lines."""
    size = study.sizes[0]
    for loss, perplexity in itertools.product(
        study.crossings_of("loss", size), study.crossings_of("perplexity", size)
    ):
        both = set(loss.families) == set(perplexity.families)
        if both and loss.kind == perplexity.kind == "beyond":
            ratio = math.exp(abs(math.log(loss.parameters / perplexity.parameters)))
            if ratio > APART:
                yield (
                    "Perplexity is exp of loss, so that both lines cannot be straight, yet their "
                    f"crossings of {_list(loss.families)} lie a factor {times(ratio)} "
                    "apart: which is right is the choice of an axis."
                )


def _counts(study: Study) -> Iterator[str]:
    """How much is embedding, how unequal the families are, and what other counts make of it."""
    first, *others = study.sizes
    most = max(study.points, key=lambda p: 1 - p.sizes["body"] / p.sizes["total"])
    share = 1 - most.sizes["body"] / most.sizes["total"]
    text = f"The embedding is {percent(share)} of the parameters of {most.family} at {most.scale}"
    ratio, scale, large, small = _unequal(study)
    if ratio > UNEQUAL:
        text += f"; outside it {large} has {times(ratio)} times those of {small} at {scale}"
    crossings = study.crossings_of("loss", first)
    found = [
        f"{COUNTED[size]} {_list(_elsewhere(study, crossing, size) for crossing in crossings)}"
        for size in others
        if crossings
    ]
    yield f"{text}." + (f" In loss, counted {'; counted '.join(found)}." if found else "")


def _elsewhere(study: Study, crossing: Crossing, size: str) -> str:
    """Where the same two families meet in loss by another count."""
    a, b = crossing.families
    found = (c for c in study.crossings_of("loss", size) if set(c.families) == {a, b})
    other = next(found, None)
    if other is None:
        return f"{a} and {b} have not two sizes each, which lines need"
    a, b = other.families
    if other.kind in ("parallel", "before"):
        return f"{a} and {b} meet at none of the sizes to the right"
    return f"{a} overtakes {b} at {amount(other.parameters)}"


def _unequal(study: Study) -> tuple[float, str, str, str]:
    """The largest ratio of two families' parameters outside the embedding, and of which."""
    bodies: dict[str, dict[str, int]] = {}
    for point in study.points:
        bodies.setdefault(point.scale, {})[point.family] = point.sizes["body"]
    found = []
    for scale, of in bodies.items():
        large, small = (pick(of, key=of.__getitem__) for pick in (max, min))
        found.append((of[large] / of[small], scale, large, small))
    return max(found)


def _floors(study: Study) -> Iterator[str]:
    """Whether losses end at a floor."""
    floors = {floor.family: floor for floor in study.floors if floor.size == study.sizes[0]}
    found = []
    for floor in floors.values():
        low, high = min(floor.without.values()), max(floor.without.values())
        verdict = "is" if floor.determined else "is not"
        better = "better" if floor.error < floor.line_error else "no better"
        found.append(
            f"for {floor.family} {verdict} determined ({floor.law.floor:.2f}; {low:.2f} to "
            f"{high:.2f} as scales are left out, which it predicts {better} than the power law)"
        )
    if found:
        yield f"A floor of the loss {_list(found)}."
    few = [family for family in study.families if family not in floors]
    if few:
        yield (
            f"Whether the loss of {_list(few)} ends at a floor cannot be told: that takes four "
            "scales, since through three a law with a floor goes exactly."
        )


def _span(low: str, high: str) -> str:
    return f"of {low}" if low == high else f"from {low} to {high}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _list(words: Iterable[str]) -> str:
    *firsts, last = words
    return f"{', '.join(firsts)} and {last}" if firsts else last
