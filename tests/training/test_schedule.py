from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.benchmarks.lr_search import RESULTS as SEARCH
from mlx_pam.benchmarks.study import STUDIES
from mlx_pam.config import PRESETS, Recipe, TrainConfig, recipe_for
from mlx_pam.config.rates import PACKAGED
from mlx_pam.training.schedule import learning_rate

RECIPE = dataclasses.replace(
    recipe_for("tuned", "pam", "5m"), peak_lr=2.0, warmup_steps=10, min_lr_ratio=0.1
)


def rates(steps: int, recipe: Recipe = RECIPE) -> list[float]:
    return [learning_rate(step, steps, recipe) for step in range(1, steps + 1)]


def test_warm_up_is_a_line_from_zero_to_the_peak():
    assert rates(110)[:10] == pytest.approx([0.2 * step for step in range(1, 11)])


def test_cosine_starts_at_the_peak_and_is_half_way_down_in_the_middle():
    after = rates(110)[10:]
    assert after[0] == 2.0
    assert after[50] == pytest.approx((2.0 + 0.2) / 2)
    assert learning_rate(111, 110, RECIPE) == pytest.approx(0.2)


@given(steps=st.integers(1, 300), warmup=st.integers(0, 300), floor=st.sampled_from([0.0, 0.1]))
def test_every_rate_is_positive_and_at_most_the_peak(steps, warmup, floor):
    recipe = dataclasses.replace(RECIPE, warmup_steps=warmup, min_lr_ratio=floor)
    assert all(0 < rate <= 2.0 for rate in rates(steps, recipe))


def test_rates_fall_after_the_warm_up():
    after = rates(110)[10:]
    assert all(later < earlier for earlier, later in itertools.pairwise(after))


def test_canonical_recipe_is_table_2():
    config = TrainConfig(recipe="canonical", scale="100m")
    recipe = config.resolved_recipe(steps=100_000)
    assert (recipe.peak_lr, recipe.weight_decay, recipe.warmup_steps) == (3e-5, 0.01, 500)
    assert (recipe.clip_norm, recipe.epochs, recipe.min_lr_ratio) == (1.0, 10, 0.0)
    assert (config.batch_size, config.seq_len) == (8, 512)


def test_every_family_and_scale_has_a_tuned_rate_and_a_searched_one_tells_its_losses():
    for family, scales in PRESETS.items():
        for scale in scales:
            recipe = recipe_for("tuned", family, scale)
            assert 1e-3 <= recipe.peak_lr <= 8e-3
            assert recipe.lr_origin.split(":")[0] in ("searched", "not searched")
    rows = [json.loads(line) for line in SEARCH.read_text().splitlines()]
    entry = json.loads(PACKAGED.read_text())["pam"]["5m"]
    tried = {row["rate"]: row["validation_loss"] for row in entry["tried"]}
    assert tried == {row["lr"]: row["validation_loss"] for row in rows}
    assert {(entry["tokens"], entry["data"])} == {(row["tokens"], row["data"]) for row in rows}
    assert tried[entry["rate"]] < min(tried.values()) + 0.04  # as its note has it


def test_the_rates_of_small_scales_are_those_that_the_study_found():
    found = json.loads((STUDIES / "wikipedia" / "learning_rates.json").read_text())
    packaged = json.loads(PACKAGED.read_text())
    assert {family: sorted(scales) for family, scales in found.items()} == {
        family: ["1m", "300k", "3m"] for family in ("pam", "sam-matched", "transformer")
    }
    for family, scales in found.items():
        assert scales.items() <= packaged[family].items()
        for entry in scales.values():
            losses = {row["rate"]: row["validation_loss"] for row in entry["tried"]}
            assert entry["rate"] == min(losses, key=losses.__getitem__)


def test_an_own_learning_rate_says_so():
    recipe = TrainConfig(lr=0.5).resolved_recipe(10)
    assert (recipe.peak_lr, recipe.lr_origin) == (0.5, "--lr")
    assert TrainConfig(recipe="canonical").resolved_recipe(10).lr_origin == "the paper's"


def test_warm_up_of_a_recipe_is_at_most_a_tenth_of_the_run_and_an_own_one_is_kept():
    assert TrainConfig().resolved_recipe(50).warmup_steps == 5
    assert TrainConfig(warmup_steps=40).resolved_recipe(50).warmup_steps == 40


def test_epochs_of_the_recipe_cover_the_windows_exactly():
    config = TrainConfig(batch_size=8, accumulate=2)
    assert config.schedule_steps(windows_per_epoch=160) == 100
    assert config.schedule_steps(windows_per_epoch=161) == math.ceil(1610 / 16)
    assert dataclasses.replace(config, steps=7).schedule_steps(161) == 7
