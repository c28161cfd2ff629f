"""The sampler: its distribution against a plain definition, and what each setting promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.errors import ConfigError, MlxPamError
from mlx_pam.sampling import PAPER_SAMPLING, SamplingConfig, distribution, draw, log_probability

PLAIN = SamplingConfig(top_k=0, top_p=1.0)  # no filter, no penalty


def config(**settings) -> SamplingConfig:
    return SamplingConfig(**{"top_k": 0, "top_p": 1.0} | settings)


def softmax(logits: np.ndarray) -> np.ndarray:
    scores = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return scores / scores.sum()


def dense(logits, settings, context=()) -> np.ndarray:
    """The distribution as a vector over the vocabulary."""
    ids, probabilities = distribution(np.array(logits, np.float32), settings, context)
    vector = np.zeros(len(logits))
    vector[ids] = probabilities
    return vector


def by_definition(logits, settings: SamplingConfig) -> np.ndarray:
    """Temperature, top-k, top-p and min-p by a full sort and a loop over tokens."""
    probabilities = softmax(np.array(logits, np.float32).astype(np.float64) / settings.temperature)
    order = sorted(range(len(logits)), key=lambda i: (-probabilities[i], i))
    order = order[: settings.top_k or None]
    share, kept, mass = probabilities[order].sum(), [], 0.0
    for token in order:
        if kept and mass >= settings.top_p * share:
            break
        kept.append(token)
        mass += probabilities[token]
    kept = [t for t in kept if probabilities[t] >= settings.min_p * probabilities.max()]
    vector = np.zeros(len(logits))
    vector[kept] = probabilities[kept] / probabilities[kept].sum()
    return vector


finite = st.floats(-60, 60, width=32)
some_logits = st.lists(finite, min_size=2, max_size=12)
few_levels = st.lists(st.sampled_from([-3.0, 0.0, 0.5, 2.0]), min_size=2, max_size=12)
filters = st.builds(
    config,
    temperature=st.sampled_from([1e-30, 0.3, 1.0, 3.0]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.0, 1e-9, 0.3, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.9, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2, 1e6]),
    repetition_rule=st.sampled_from(["multiplicative", "additive"]),
    repetition_window=st.integers(0, 5),
)
contexts = st.lists(st.integers(0, 1), max_size=6)


@given(few_levels, st.integers(0, 14), st.sampled_from([0.0, 0.33, 0.71, 1.0]), st.floats(0, 1))
def test_filters_are_their_definitions_with_ties(logits, top_k, top_p, min_p):
    settings = config(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    np.testing.assert_allclose(dense(logits, settings), by_definition(logits, settings), atol=1e-9)


def test_filters_are_their_definitions_on_a_real_vocabulary():
    logits = np.random.default_rng(0).normal(0, 3, 50257)
    for settings in (
        config(top_p=0.9),
        config(top_k=50, top_p=0.9),
        config(top_k=1000, temperature=2.0),
        config(min_p=0.1, temperature=1.5),
    ):
        np.testing.assert_allclose(
            dense(logits, settings), by_definition(logits, settings), atol=1e-9
        )


@given(some_logits | few_levels, filters, contexts)
def test_no_combination_leaves_the_set_empty(logits, settings, context):
    ids, probabilities = distribution(np.array(logits, np.float32), settings, context)
    assert len(ids) == len(probabilities) >= 1
    assert (np.diff(ids) > 0).all()
    assert (probabilities > 0).all()
    assert probabilities.sum() == pytest.approx(1)


def test_masked_tokens_are_never_drawn():
    logits = [-np.inf, 1.0, -np.inf, 0.0]
    for settings in (PLAIN, config(top_k=3), config(top_p=0.99), config(repetition_penalty=1e6)):
        assert set(np.flatnonzero(dense(logits, settings, [1]))) <= {1, 3}


def test_top_k_keeps_exactly_k_of_equal_tokens_lowest_ids_first():
    assert np.flatnonzero(dense([1, 2, 1, 1, 2, 1], config(top_k=4))).tolist() == [0, 1, 2, 4]
    assert np.flatnonzero(dense([0] * 9, config(top_k=4))).tolist() == [0, 1, 2, 3]


def test_top_k_of_the_vocabulary_or_more_is_no_filter():
    logits = [0.3, -1, 2, 0.3]
    for top_k in (4, 5, 10**9):
        np.testing.assert_array_equal(dense(logits, config(top_k=top_k)), dense(logits, PLAIN))


def test_temperature_comes_before_top_p():
    logits = np.log([0.5, 0.3, 0.2])
    assert np.count_nonzero(dense(logits, config(top_p=0.6, temperature=1.0))) == 2
    assert np.count_nonzero(dense(logits, config(top_p=0.6, temperature=0.3))) == 1


@pytest.mark.parametrize("temperature", [0, 1e-300, 5e-324])
def test_temperature_towards_zero_is_the_most_likely_token(temperature):
    logits = np.array([0.0, 3.0, 2.999, -1.0], np.float32)
    ids, probabilities = distribution(logits, config(temperature=temperature))
    assert ids.tolist() == [1]
    assert probabilities.tolist() == [1]


def test_greedy_takes_the_lowest_of_equal_tokens_whatever_the_filters():
    for settings in (config(temperature=0), config(temperature=0, top_k=2, top_p=0.1, min_p=1.0)):
        token = draw(np.array([1, 5, 5, 2], np.float32), settings, [], np.random.default_rng())
        assert token == 1


def test_draws_follow_the_distribution():
    logits = np.log(np.array([0.1, 0.0625, 0.4, 0.4375], np.float32))
    generator = np.random.default_rng(0)
    counts = np.bincount([draw(logits, PLAIN, [], generator) for _ in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, softmax(logits), atol=0.01)


def test_a_draw_takes_one_number_so_a_seed_repeats_it():
    logits = np.random.default_rng(1).normal(size=100).astype(np.float32)
    used, again, counting = (np.random.default_rng(7) for _ in range(3))
    first = [draw(logits, PAPER_SAMPLING, [], used) for _ in range(20)]
    assert first == [draw(logits, PAPER_SAMPLING, [], again) for _ in range(20)]
    assert len(set(first)) > 1
    counting.random(20)
    assert used.random() == counting.random()


@given(some_logits, contexts)
def test_penalty_of_one_changes_nothing(logits, context):
    np.testing.assert_array_equal(
        dense(logits, config(repetition_penalty=1.0), context), dense(logits, PLAIN)
    )


@given(
    some_logits | few_levels,
    st.lists(st.integers(0, 11), max_size=8),
    st.sampled_from([1.0001, 1.2, 2.0, 1e6]),
    st.sampled_from([0.3, 1.0, 3.0]),
)
def test_a_token_penalized_additively_never_rises(logits, context, penalty, temperature):
    """However many tokens are penalised, and whatever the sign of their logits."""
    context = [token % len(logits) for token in context]
    before = dense(logits, config(temperature=temperature))
    additive = config(
        temperature=temperature, repetition_penalty=penalty, repetition_rule="additive"
    )
    after = dense(logits, additive, context)
    seen = list(set(context))
    assert (after[seen] <= before[seen] + 1e-9).all()


@pytest.mark.parametrize("temperature", [0, 0.5, 1.0, 100.0])
@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(40),
        np.full(40, -30.0),
        np.linspace(-80, -20, 40),
        np.linspace(-5, 5, 40),
        np.eye(40)[3] * 1000,
    ],
    ids=["zero", "equal negative", "negative", "both signs", "certain"],
)
def test_a_huge_additive_penalty_never_repeats_while_other_tokens_remain(logits, temperature):
    settings = config(
        repetition_penalty=1e6,
        repetition_rule="additive",
        repetition_window=0,
        temperature=temperature,
    )
    context, generator = [], np.random.default_rng(0)
    for _ in range(40):
        context.append(draw(logits.astype(np.float32), settings, context, generator))
    assert sorted(context) == list(range(40))
    draw(logits.astype(np.float32), settings, context, generator)  # all seen: still a token


def test_when_all_tokens_are_seen_the_additive_penalty_is_no_penalty():
    logits = np.random.default_rng(0).normal(0, 5, 30)
    additive = config(repetition_penalty=1e6, repetition_rule="additive", repetition_window=0)
    after = dense(logits, additive, range(30))
    np.testing.assert_allclose(after, softmax(logits), rtol=1e-5)


def test_the_additive_penalty_does_not_depend_on_where_zero_is():
    logits = np.array([4.0, 2.0, 0.0, -1.0])
    settings = config(repetition_penalty=1.3, repetition_rule="additive")
    np.testing.assert_allclose(
        dense(logits, settings, [0, 2]), dense(logits - 32, settings, [0, 2]), rtol=1e-5
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_usual_penalty_divides_positive_logits_and_multiplies_negative_ones(temperature):
    logits = [3.0, 1.0, 0.0, -1.0, -2.0, -np.inf]
    settings = config(repetition_penalty=2.0, temperature=temperature)
    expected = softmax(np.array([1.5, 1.0, 0.0, -2.0, -2.0, -np.inf]) / temperature)
    np.testing.assert_allclose(dense(logits, settings, [0, 2, 3, 5, 3]), expected, rtol=1e-6)
    assert PAPER_SAMPLING.repetition_rule == "multiplicative"


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    for top_p, kept in ((0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (0.95, 3), (0.951, 4)):
        assert np.count_nonzero(dense(logits, config(top_p=top_p))) == kept, top_p


@pytest.mark.parametrize("rule", ["multiplicative", "additive"])
def test_penalty_counts_a_token_once_and_only_inside_the_window(rule):
    logits = np.ones(5)
    settings = config(repetition_penalty=2.0, repetition_rule=rule, repetition_window=3)
    assert np.array_equal(dense(logits, settings, [1, 1, 1]), dense(logits, settings, [1]))
    assert np.array_equal(dense(logits, settings, [4, 1, 2, 3]), dense(logits, settings, [1, 2, 3]))
    everything = config(repetition_penalty=2.0, repetition_rule=rule, repetition_window=0)
    assert dense(logits, everything, [4, 1, 2, 3])[4] < dense(logits, everything, [1, 2, 3])[4]


@pytest.mark.parametrize("damage", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_not_finite_are_an_error_not_a_token(damage, temperature):
    logits = np.zeros(10, np.float32)
    logits[4] = damage
    with pytest.raises(MlxPamError, match=r"logits must be finite, got (nan|inf) after 3 tokens"):
        distribution(logits, config(temperature=temperature), [1, 2, 3])
    with pytest.raises(MlxPamError, match="finite"):
        distribution(np.full(10, -np.inf), config(temperature=temperature))


def test_log_probability_is_that_of_the_plain_softmax():
    logits = np.array([5.0, -300.0, 2.0], np.float32)
    for token in range(3):
        expected = logits[token] - 5.0 - np.log1p(np.exp(-3.0))
        assert log_probability(logits, token) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 1.01),
        ("top_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0.9),
        ("repetition_rule", "ctrl"),
        ("repetition_penalty", float("inf")),
        ("repetition_window", -1),
    ],
)
def test_impossible_settings_are_errors_with_name_and_value(name, value):
    with pytest.raises(ConfigError, match=rf"{name} must be .*got"):
        SamplingConfig(**{name: value})
