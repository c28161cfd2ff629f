"""From rates to a row: medians, ratios of the pairs in each round, shares of what bounds them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlx_pam.benchmarks.rounds import Outcome

Spread = dict[str, float]

LEAST_SHARE = 0.5  # of the bandwidth that a decoder uses without a context


def spread(values: Sequence[float]) -> Spread:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Of two variants' rates, round by round: what slows both in one round cancels."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def variants(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    """What a row says of each variant."""
    return {
        name: {"skipped": outcome.skipped}
        if outcome.skipped
        else {
            "unit": outcome.unit,
            **spread(outcome.rates),
            "rates": outcome.rates,
            "peak_bytes": outcome.peak_bytes,
            "description": outcome.description,
            **outcome.facts,
        }
        for name, outcome in outcomes.items()
    }


def ratios(
    measured: Mapping[str, Mapping[str, Any]], pairs: Iterable[tuple[str, str]]
) -> dict[str, Spread | dict[str, str]]:
    """Ratios of the pairs that were both measured, beside what operation counts alone predict.

    Where the second one is not bound by bytes any more, see `unbound`, the reason stands in place
    of a ratio.
    """
    found = {}
    for over, under in pairs:
        a, b = measured.get(over, {}), measured.get(under, {})
        if "rates" not in a or "rates" not in b:
            continue
        if reason := unbound(under, measured):
            found[f"{over} / {under}"] = {"withheld": reason}
            continue
        found[f"{over} / {under}"] = ratio(a["rates"], b["rates"]) | _by_operations(a, b)
    return found


def unbound(name: str, measured: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why nothing should be held against a decoder behind a context, None if it may.

    A step that uses less than half of the bandwidth that the same decoder uses without a context
    spends its time on something other than reading weights and cache: it is not as good as it can
    be, and a ratio to it would flatter the other one.
    """
    empty = f"{name.split(' @')[0]} @0"
    shares = [measured.get(variant, {}).get("share_of_bandwidth") for variant in (name, empty)]
    if None in shares or shares[0] >= LEAST_SHARE * shares[1]:
        return None
    here, there = (f"{share:.0%}" for share in shares)
    return f"{name} is not bound by bytes: {here} of the bandwidth, {there} without a context"


def _by_operations(over: Mapping[str, Any], under: Mapping[str, Any]) -> Spread:
    """The ratio of rates if both did as many operations a second: between two that are equally
    well made it is the bound."""
    counts = {"by_operations": "flops", "by_operations_three_products": "flops_three_products"}
    return {
        name: under["flops"] / over[count]
        for name, count in counts.items()
        if "flops" in under and count in over
    }


def add_shares(measured: Mapping[str, dict[str, Any]]) -> None:
    """Hold each rate against the machine's own, measured in the same rounds.

    `share_of_product`: operations a second in a training step, against one large product of the
    same type. `share_of_bandwidth`: bytes a second that decoding must move, against the better of
    a large copy and a large read.
    """
    rates = {name: row["median"] for name, row in measured.items() if "median" in row}
    streams = [rates[name] for name in ("copy", "read") if name in rates]
    for name, row in measured.items():
        if "median" not in row:
            continue
        product = f"product {name.rsplit(' ', 1)[-1]}"
        if "flops" in row and product in rates:
            row["share_of_product"] = row["flops"] * row["median"] / rates[product]
        if "bytes_per_token" in row and streams:
            row["share_of_bandwidth"] = row["bytes_per_token"] * row["median"] / max(streams)
