"""The sampler's filters keep what their definitions say, alone and after one another."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as some
from properties.examples import examples

from mlx_pam.sampling import ROUNDING, SamplingConfig, distribution, draw

# logits whose weights are powers of two, so that sums and shares are exact
powers = some.lists(some.integers(-20, 3), min_size=1, max_size=24)
shares = some.integers(0, 64).map(lambda n: n / 64)
free = some.lists(some.floats(-1e4, 1e4, width=32), min_size=1, max_size=24)
settings = some.fixed_dictionaries(
    {
        "repetition_penalty": some.floats(1, 1e6),
        "repetition_rule": some.sampled_from(["multiplicative", "additive"]),
        "repetition_window": some.integers(0, 9),
        "temperature": some.floats(0, 100),
        "top_k": some.integers(0, 30),
        "top_p": some.floats(0, 1),
        "min_p": some.floats(0, 1),
    }
)


def by_definition(weights: list[Fraction], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Ids kept of exact weights: top-k, then top-p of what is left, then min-p of the best."""
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    order = order[: top_k or None]
    total, mass, kept = sum(weights[i] for i in order), Fraction(0), []
    for i in order:
        if kept and mass >= Fraction(top_p) * total:
            break
        kept.append(i)
        mass += weights[i]
    return {i for i in kept if weights[i] >= Fraction(min_p) * max(weights)}


@examples(300)
@given(powers, some.integers(0, 30), shares, shares)
def test_exact_weights_are_kept_by_the_definitions(exponents, top_k, top_p, min_p):
    logits = np.array(exponents) * math.log(2)
    weights = [Fraction(2) ** exponent for exponent in exponents]
    expected = by_definition(weights, top_k, top_p, min_p)
    config = SamplingConfig(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, probabilities = distribution(logits, config)
    if set(ids.tolist()) != expected:  # a sum at the very edge may round to either side
        nearby = [
            by_definition(weights, top_k, top_p * (1 + nudge), min_p * (1 + other))
            for nudge in (-ROUNDING, 1e-12)
            for other in (-1e-12, 1e-12)
        ]
        assert set(ids.tolist()) in nearby
    total = sum(weights[i] for i in ids)
    np.testing.assert_allclose(probabilities, [float(weights[i] / total) for i in ids], rtol=1e-9)


@examples(300)
@given(free, settings, some.lists(some.integers(0, 23), max_size=12), some.data())
def test_any_combination_is_a_distribution_of_the_likeliest(logits, chosen, context, data):
    """Never empty; a stricter setting keeps a part; what is kept is as likely as what is not."""
    size = len(logits)
    context = [token % size for token in context]
    config = SamplingConfig(**chosen)
    ids, probabilities = distribution(np.array(logits, np.float32), config, context)
    assert 1 <= len(ids) == len(set(ids.tolist())) <= size
    assert (probabilities > 0).all()
    assert abs(probabilities.sum() - 1) < 1e-9
    assert len(ids) <= (chosen["top_k"] or size)
    stricter = data.draw(some.sampled_from(("top_k", "top_p", "min_p")))
    value = {"top_k": 1, "top_p": chosen["top_p"] / 2, "min_p": (1 + chosen["min_p"]) / 2}[stricter]
    fewer, _ = distribution(
        np.array(logits, np.float32), SamplingConfig(**chosen | {stricter: value}), context
    )
    assert set(fewer.tolist()) <= set(ids.tolist())
    everything = SamplingConfig(**chosen | {"top_k": 0, "top_p": 1.0, "min_p": 0.0})
    all_ids, all_probabilities = distribution(np.array(logits, np.float32), everything, context)
    likely = dict(zip(all_ids.tolist(), all_probabilities.tolist(), strict=True))
    left_out = [likely[i] for i in set(likely) - set(ids.tolist())]
    assert min(likely[i] for i in ids.tolist()) >= max(left_out, default=0) * (1 - 1e-12)


@examples(150)
@given(free, settings, some.lists(some.integers(0, 23), max_size=12), some.integers(0, 2**64))
def test_a_draw_is_one_of_those_kept_and_of_its_seed(logits, chosen, context, seed):
    context = [token % len(logits) for token in context]
    config = SamplingConfig(**chosen)
    first, again = (np.random.default_rng(seed) for _ in range(2))
    token = draw(np.array(logits, np.float32), config, context, first)
    ids, _ = distribution(np.array(logits, np.float32), config, context)
    assert token in ids
    assert token == draw(np.array(logits, np.float32), config, context, again)
    assert first.random() == again.random()


@examples(150)
@given(free, settings, some.integers(-1000, 1000))
def test_only_differences_of_logits_count(logits, chosen, shift):
    """Softmax does not know where zero is, and neither does any setting."""
    exact = np.round(np.array(logits) * 4) / 4  # so that the shift is exact
    assume(len(set(exact.tolist())) == len(exact))
    ids, _ = distribution(exact, SamplingConfig(**chosen | {"repetition_penalty": 1.0}))
    moved, _ = distribution(exact + shift, SamplingConfig(**chosen | {"repetition_penalty": 1.0}))
    assert ids.tolist() == moved.tolist()
