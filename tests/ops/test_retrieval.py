"""Every form of retrieval is the token loop of the oracle: value, final state and each gradient."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import pairwise

import mlx.core as mx
import numpy as np
import oracle
import pytest
from drawing import CONSTANT_DECAYS, Inputs, answer, ask, draw
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from identities import (
    assert_a_decay_just_below_one_carries,
    assert_a_slow_decay_has_no_bias,
    assert_a_zero_decay_forgets,
)

from mlx_pam.errors import ConfigError, MlxPamError
from mlx_pam.ops.retrieval import FORMS, retrieve

TOLERANCE = 1e-5  # of values and gradients, relative to the largest entry, float32

forms = pytest.mark.parametrize("form", FORMS)
fields = pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])

needs_compiler = pytest.mark.skipif(
    not mx.metal.is_available() and shutil.which("g++") is None,
    reason="mx.compile on the CPU calls a C++ compiler",
)


def values(form: str, inputs: Inputs):
    """(y, state) as NumPy arrays."""
    y, state = retrieve(*map(mx.array, inputs), form=form)
    return np.array(y), np.array(state)


def values_and_gradients(form: str, inputs: Inputs, dy, dstate, transform=lambda f: f):
    """(y, state, gradients) as NumPy arrays, the gradients by `mx.vjp`."""

    def differentiate(*arrays):
        *primals, dy, dstate = arrays
        return mx.vjp(partial(retrieve, form=form), primals, [dy, dstate])

    arrays = [mx.array(x) for x in (*inputs, dy, dstate)]
    (y, state), gradients = transform(differentiate)(*arrays)
    return np.array(y), np.array(state), oracle.Gradients(*map(np.array, gradients))


def numpy(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32))


def errors(found, expected) -> dict[str, float]:
    """Relative error by name: y, final state, and the gradient of each input."""
    y, state, gradients = found
    named = {"y": (y, expected.y), "final state": (state, expected.state)}
    for name, pair in zip(
        gradients._fields, zip(gradients, expected.gradients, strict=True), strict=True
    ):
        named[f"gradient of {name}"] = pair
    return {name: oracle.relative_error(*pair) for name, pair in named.items()}


def assert_is_token_loop(form, is_complex, time, dim, decay, transform=lambda f: f):
    question = ask(is_complex, time, dim, decay)
    inputs, dy, dstate, expected = question
    found = errors(values_and_gradients(form, inputs, dy, dstate, transform), expected)
    assert {name: error for name, error in found.items() if not error <= TOLERANCE} == {}


@fields
@pytest.mark.parametrize("time", [1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 200])
@forms
def test_every_form_is_the_token_loop_at_every_length(form, time, is_complex):
    assert_is_token_loop(form, is_complex, time, 16, "smooth")


@fields
@pytest.mark.parametrize("dim", [8, 64])
@pytest.mark.parametrize("time", [1, 33, 64, 65, 129])
@forms
def test_every_form_is_the_token_loop_at_every_width(form, time, dim, is_complex):
    assert_is_token_loop(form, is_complex, time, dim, "smooth")


@pytest.mark.parametrize("time", [513, 1030])
@forms
def test_long_sequences_are_the_token_loop(form, time):
    """1030 is longer than one span of chunks at d = 16."""
    assert_is_token_loop(form, True, time, 16, "mixed")


@fields
@pytest.mark.parametrize("decay", [*CONSTANT_DECAYS, "mixed", "cliff"])
@forms
def test_every_decay_from_one_to_zero_is_exact(form, decay, is_complex):
    assert_is_token_loop(form, is_complex, 100, 16, decay)


@pytest.mark.slow
@fields
@pytest.mark.parametrize("decay", [*CONSTANT_DECAYS, "smooth", "mixed", "cliff"])
@pytest.mark.parametrize("dim", [8, 16, 64])
@pytest.mark.parametrize("time", [1, 2, 17, 63, 65, 200, 513])
@forms
def test_every_combination_is_the_token_loop(form, time, dim, decay, is_complex):
    assert_is_token_loop(form, is_complex, time, dim, decay)


@needs_compiler
@fields
@forms
def test_compiled_gradients_are_the_token_loop(form, is_complex):
    assert_is_token_loop(form, is_complex, 9, 8, "mixed", transform=mx.compile)


@fields
@pytest.mark.parametrize("cut", range(1, 20))
@forms
def test_a_sequence_in_two_pieces_is_the_sequence(form, cut, is_complex):
    inputs, dy, dstate, expected = ask(is_complex, 20, 8, "mixed")

    def in_pieces(*arrays):
        *rows, state = arrays
        first, state = retrieve(*(x[:, :cut] for x in rows), state, form=form)
        second, state = retrieve(*(x[:, cut:] for x in rows), state, form=form)
        return mx.concatenate([first, second], axis=1), state

    cotangents = [mx.array(dy), mx.array(dstate)]
    (y, state), gradients = mx.vjp(in_pieces, [mx.array(x) for x in inputs], cotangents)
    found = np.array(y), np.array(state), oracle.Gradients(*map(np.array, gradients))
    assert max(errors(found, expected).values()) < TOLERANCE


@hypothesis_settings(max_examples=40)
@given(
    time=some.integers(2, 150),
    pieces=some.lists(
        some.tuples(some.floats(0, 1), some.sampled_from(sorted(FORMS))), min_size=1, max_size=6
    ),
    is_complex=some.booleans(),
    decay=some.sampled_from(["smooth", "mixed"]),
    data=some.data(),
)
def test_any_pieces_in_any_forms_are_the_sequence(time, pieces, is_complex, decay, data):
    """Each piece is computed in a form of its own, and hands its state to the next."""
    inputs, *_ = draw(is_complex, time, 8, decay, seed=data.draw(some.integers(0, 9)))
    expected, expected_state = oracle.retrieve(*inputs)
    cuts = sorted({0, time} | {round(where * time) for where, _ in pieces})
    rows, state, parts = [mx.array(x) for x in inputs[:4]], mx.array(inputs.state), []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        form = pieces[number % len(pieces)][1]
        y, state = retrieve(*(x[:, start:stop] for x in rows), state, form=form)
        parts.append(np.array(y))
    assert oracle.relative_error(np.concatenate(parts, axis=1), expected) < TOLERANCE
    assert oracle.relative_error(np.array(state), expected_state) < TOLERANCE


@fields
@forms
def test_a_zero_decay_forgets_to_the_last_bit(form, is_complex):
    def gradients_of(*question):
        return values_and_gradients(form, *question)[2]

    assert_a_zero_decay_forgets(is_complex, partial(values, form), gradients_of)


@fields
@forms
def test_a_decay_just_below_one_carries_a_write_over_2048_steps(form, is_complex):
    tolerance = 5e-6 if form == "recurrent" else 2e-6  # 2048 roundings of one number add up
    assert_a_decay_just_below_one_carries(is_complex, partial(values, form), tolerance)


@fields
@forms
def test_a_slow_decay_has_no_bias(form, is_complex):
    assert_a_slow_decay_has_no_bias(is_complex, partial(values, form))


@fields
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(mx.bfloat16, 2e-2), (mx.float16, 3e-3)], ids=["bf16", "fp16"]
)
@forms
def test_half_precision_inputs_keep_float32_decays_and_state(form, dtype, tolerance, is_complex):
    for decay in ("smooth", "mixed", 1 - 1e-5):
        inputs, dy, dstate = draw(is_complex, 130, 16, decay)
        arrays = [mx.array(x) for x in (*inputs, dy, dstate)]
        for halved in (0, 1, 2, 5):  # q, k, v, dy
            arrays[halved] = arrays[halved].astype(dtype)
        *inputs, dy, dstate = (numpy(x) for x in arrays)  # as they were rounded
        expected = answer(Inputs(*inputs), dy, dstate)

        *primals, dy, dstate = arrays
        outputs, gradients = mx.vjp(partial(retrieve, form=form), primals, [dy, dstate])
        assert [x.dtype for x in (*outputs, *gradients)] == [
            *(dtype, mx.float32),
            *(dtype, dtype, dtype, mx.float32, mx.float32),
        ]
        found = *map(numpy, outputs), oracle.Gradients(*map(numpy, gradients))
        found_errors = errors(found, expected)
        assert found_errors.pop("final state") < TOLERANCE
        assert max(found_errors.values()) < tolerance


@fields
@forms
def test_no_state_is_a_state_of_zeros(form, is_complex):
    inputs, *_ = draw(is_complex, 20, 8, "smooth")
    rows = [mx.array(x) for x in inputs[:4]]
    without = retrieve(*rows, form=form)
    zeros = retrieve(*rows, mx.zeros(inputs.state.shape), form=form)
    for one, other in zip(without, zeros, strict=True):
        assert np.array_equal(np.array(one), np.array(other))


@pytest.mark.parametrize("time", [1, 70])
def test_auto_is_one_of_the_forms(time):
    inputs, *_ = draw(True, time, 8, "smooth")
    y, _ = values("auto", inputs)
    assert any(np.array_equal(y, values(form, inputs)[0]) for form in FORMS)


@pytest.mark.parametrize("form", ["fast", "Parallel", "", "cuda"])
def test_a_form_that_is_not_there_raises_and_names_those_that_are(form):
    inputs, *_ = draw(True, 3, 4, "smooth")
    with pytest.raises(MlxPamError) as caught:
        retrieve(*map(mx.array, inputs), form=form)
    assert repr(form) in str(caught.value)
    assert all(name in str(caught.value) for name in FORMS)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("q", lambda x: x[:, :0]),
        ("k", lambda x: x[:, 1:]),
        ("v", lambda x: x[..., 1:]),
        ("log_decay", lambda x: x[..., :1]),
        ("state", lambda x: x[:1]),
    ],
)
def test_shapes_that_do_not_fit_raise(argument, change):
    inputs, *_ = draw(True, 3, 4, "smooth")
    arrays = {name: mx.array(x) for name, x in inputs._asdict().items()}
    with pytest.raises(MlxPamError):
        retrieve(**arrays | {argument: change(arrays[argument])})


@pytest.mark.parametrize("name", Inputs._fields)
def test_integers_raise_and_are_named(name):
    inputs, *_ = draw(True, 3, 4, "smooth")
    arrays = {name: mx.array(x) for name, x in inputs._asdict().items()}
    arrays[name] = arrays[name].astype(mx.int32)
    with pytest.raises(ConfigError, match=f"^{name} must be floating point, got int32$"):
        retrieve(**arrays)


def test_an_empty_batch_raises():
    inputs, *_ = draw(True, 3, 4, "smooth")
    with pytest.raises(ConfigError, match="must be at least 1, got 0, 3, 2 and 4"):
        retrieve(*(mx.array(x[:0]) for x in inputs))
