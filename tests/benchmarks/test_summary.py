"""Medians, ratios per round, and what rates are held against."""

from __future__ import annotations

import pytest
from rich.console import Console

from mlx_pam.benchmarks import report, summary
from mlx_pam.benchmarks.rounds import Outcome


def test_a_ratio_pairs_the_rates_of_each_round() -> None:
    # the second round ran at half the speed for both: the ratio does not notice
    assert summary.ratio([20, 10, 24], [10, 5, 10]) == {"median": 2.0, "min": 2.0, "max": 2.4}


def test_a_ratio_needs_all_rounds_of_both() -> None:
    with pytest.raises(ValueError, match="shorter"):
        summary.ratio([1.0, 2.0], [1.0])


def rows(**outcomes: Outcome):
    return summary.variants(outcomes)


def test_a_skipped_variant_gives_its_reason_and_no_figures() -> None:
    measured = rows(a=Outcome([1.0], "tokens/s"), b=Outcome([2.0], skipped="no such library"))
    assert measured["b"] == {"skipped": "no such library"}
    assert summary.ratios(measured, [("a", "b"), ("a", "absent")]) == {}


def test_operation_counts_bound_the_ratio() -> None:
    pam = {"flops": 300.0, "flops_three_products": 240.0}
    measured = rows(p=Outcome([3.0], facts=pam), t=Outcome([4.0], facts={"flops": 120.0}))
    ratio = summary.ratios(measured, [("p", "t")])["p / t"]
    assert ratio["median"] == 0.75
    assert ratio["by_operations"] == 0.4
    assert ratio["by_operations_three_products"] == 0.5


def test_no_ratio_is_given_to_a_decoder_whose_share_of_bandwidth_falls_with_context() -> None:
    shares = {"PAM @8": 0.7, "transformer @0": 0.66, "transformer @8": 0.34, "transformer @9": 0.32}
    measured = {name: {"rates": [1.0], "share_of_bandwidth": x} for name, x in shares.items()}
    pairs = [("PAM @8", "transformer @8"), ("PAM @8", "transformer @9")]
    bound, unbound = summary.ratios(measured, pairs).values()
    assert bound["median"] == 1.0
    reason = "not bound by bytes: 32% of the bandwidth, 66% without a context"
    assert unbound == {"withheld": f"transformer @9 is {reason}"}


def test_a_withheld_ratio_is_shown_with_its_reason() -> None:
    console = Console(record=True, width=100)
    ratios = {"PAM @9 / transformer @9": {"withheld": "it is slow"}}
    row = {"case": "decode", "setting": {}, "rounds": 1, "wall_seconds": 1.0, "variants": {}}
    report.show(row | {"ratios": ratios}, console)
    assert "PAM @9 / transformer @9: no ratio, it is slow" in console.export_text()


def test_shares_are_of_the_product_of_the_same_type_and_of_the_better_stream() -> None:
    measured = rows(
        **{
            "PAM bf16": Outcome([10.0], facts={"flops": 6.0}),
            "product fp32": Outcome([50.0]),
            "product bf16": Outcome([120.0]),
            "PAM @0": Outcome([2.0], facts={"bytes_per_token": 25.0}),
            "copy": Outcome([100.0]),
            "read": Outcome([80.0]),
        }
    )
    summary.add_shares(measured)
    assert measured["PAM bf16"]["share_of_product"] == 0.5
    assert measured["PAM @0"]["share_of_bandwidth"] == 0.5
    assert "share_of_product" not in measured["copy"]
