"""The fused form, Metal kernels, is the token loop of the oracle: values and every gradient."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np
import oracle
import pytest
from drawing import CONSTANT_DECAYS, answer, draw
from identities import (
    assert_a_decay_just_below_one_carries,
    assert_a_slow_decay_has_no_bias,
    assert_a_zero_decay_forgets,
)
from metal.fused_form import (
    FLOAT32,
    TOLERANCES,
    differences,
    errors,
    find,
    fused,
    in_chunks,
    in_pieces,
    numpy,
    too_large,
    typed,
    values,
)

from mlx_pam.ops import metal
from mlx_pam.ops.metal import operator
from mlx_pam.ops.retrieval import chunkwise

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("machine")]

fields = pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
types = pytest.mark.parametrize("dtype", TOLERANCES, ids=["float32", "float16", "bfloat16"])


@fields
@pytest.mark.parametrize("time", [1, 2, 7, 8, 9, 31, 32, 33, 40, 65])
def test_fused_is_the_token_loop_at_every_length(time, is_complex):
    assert not too_large(errors(is_complex, time, 16, "mixed", batch=2))


@fields
@pytest.mark.parametrize("time", [1, 2, 8, 9, 32])
def test_chunks_are_the_token_loop_where_the_form_would_step(time, is_complex):
    assert time <= operator.FEW_TOKENS
    assert not too_large(errors(is_complex, time, 16, "mixed", function=in_chunks))


@pytest.mark.parametrize("function", [fused, in_chunks])
@pytest.mark.parametrize(("dim", "is_complex"), [(8, True), (8, False), (16, True)])
def test_arrays_of_fewer_than_eight_numbers_are_taken(dim, is_complex, function):
    """MLX hands them to a kernel in another address space: one token's decay is such an array."""
    for time in (1, 5):
        assert not too_large(
            errors(is_complex, time, dim, "mixed", function=function, batch=1, heads=1)
        )


@pytest.mark.parametrize(
    ("dim", "is_complex"),
    [(8, True), (22, False), (24, True), (40, False), (64, True), (128, False)],
)
def test_fused_is_the_token_loop_at_widths_of_every_kind(dim, is_complex):
    """One slab or several, blocks of 8 or 16, rows shared by 8, 16 or 32 lanes; 22 is padded."""
    assert not too_large(errors(is_complex, 5, dim, "mixed", heads=1))
    assert not too_large(errors(is_complex, 40, dim, "mixed", heads=1))


@pytest.mark.slow
@types
@fields
@pytest.mark.parametrize("dim", metal.WIDTHS)
def test_fused_is_the_token_loop_in_every_kernel_there_is(dim, is_complex, dtype):
    for time, heads in ((1, 7), (5, 2), (33, 1), (70, 2)):
        found = errors(is_complex, time, dim, "mixed", dtype, heads=heads)
        assert not too_large(found, dtype), (time, heads)


@fields
@pytest.mark.parametrize("decay", [*CONSTANT_DECAYS, "smooth", "cliff"])
def test_every_decay_from_one_to_zero_is_exact(decay, is_complex):
    assert not too_large(errors(is_complex, 70, 16, decay))
    assert not too_large(errors(is_complex, 30, 16, decay))


@pytest.mark.slow
@fields
@pytest.mark.parametrize("decay", [*CONSTANT_DECAYS, "smooth", "mixed", "cliff"])
@pytest.mark.parametrize("dim", [8, 16, 64])
@pytest.mark.parametrize("time", [1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 130, 513])
def test_every_combination_is_the_token_loop(time, dim, decay, is_complex):
    assert not too_large(errors(is_complex, time, dim, decay))


@fields
@types
@pytest.mark.parametrize("decay", ["smooth", "mixed"])
def test_halves_are_rounded_when_they_are_written_and_nowhere_else(decay, dtype, is_complex):
    """Decays, states and sums are float32; so are the gradients of log decay and state."""
    assert not too_large(errors(is_complex, 70, 16, decay, dtype), dtype)


def test_a_float16_state_can_be_larger_than_any_float16():
    inputs, dy, dstate = draw(True, 40, 16, 1.0)
    inputs = inputs._replace(q=inputs.q * np.float32(1e-4), state=inputs.state * np.float32(1e6))
    found = find(inputs, dy, dstate, mx.float16)
    y, _ = oracle.retrieve(*(numpy(x) for x in typed(inputs, dy, dstate, mx.float16)[:5]))
    assert oracle.relative_error(found.y, y) < TOLERANCES[mx.float16]


@fields
@pytest.mark.parametrize("cuts", [(1,), (8,), (33,), (1, 2, 36)])
def test_a_sequence_in_pieces_is_the_sequence(cuts, is_complex):
    """Pieces of one token and of few go through another kernel than the longer ones."""
    assert not too_large(errors(is_complex, 70, 16, "mixed", function=in_pieces(cuts)))


@fields
def test_a_zero_decay_forgets_to_the_last_bit(is_complex):
    def gradients_of(*question):
        return find(*question).gradients

    assert_a_zero_decay_forgets(is_complex, values, gradients_of)


@fields
def test_a_decay_just_below_one_carries_a_write_over_2048_steps(is_complex):
    assert_a_decay_just_below_one_carries(is_complex, values, FLOAT32)


@fields
def test_a_slow_decay_has_no_bias(is_complex):
    assert_a_slow_decay_has_no_bias(is_complex, values)
    assert_a_slow_decay_has_no_bias(is_complex, partial(values, function=in_chunks))


@fields
def test_rows_need_not_lie_one_after_the_other(is_complex):
    """q, k and v as slices of one projection, decays and state transposed, dy a broadcast."""

    def strided(q, k, v, log_decay, state):
        q, k, v = mx.split(mx.concatenate([q, k, v], axis=2), 3, axis=2)
        log_decay = mx.contiguous(log_decay.swapaxes(1, 2)).swapaxes(1, 2)
        state = mx.contiguous(state.swapaxes(-1, -2)).swapaxes(-1, -2)
        return fused(q, k, v, log_decay, state)

    inputs, dy, dstate = draw(is_complex, 40, 16, "smooth")
    dy[:] = 1
    *primals, _, dlast = typed(inputs, dy, dstate, mx.float32)
    (y, state), _ = mx.vjp(strided, primals, [mx.array(dy), dlast])
    gradients = mx.grad(lambda *a: strided(*a)[0].sum() + (strided(*a)[1] * dlast).sum(), range(5))
    found = [y, state, oracle.Gradients(*map(numpy, gradients(*primals)))]
    expected = answer(inputs, dy, dstate)
    assert oracle.relative_error(numpy(found[0]), expected.y) < FLOAT32
    assert oracle.relative_error(numpy(found[1]), expected.state) < FLOAT32
    for one, other in zip(found[2], expected.gradients, strict=True):
        assert oracle.relative_error(one, other) < FLOAT32


@pytest.mark.parametrize("used", [0, 1], ids=["y", "final state"])
def test_a_loss_may_look_at_one_output_alone(used):
    inputs, *cotangents = draw(True, 40, 16, "smooth")
    cotangents[1 - used][:] = 0
    weights = mx.array(cotangents[used])

    def loss(*arrays):
        return (fused(*arrays)[used] * weights).sum()

    gradients = mx.grad(loss, argnums=range(5))(*map(mx.array, inputs))
    expected = answer(inputs, *cotangents).gradients
    for name, gradient in zip(oracle.Gradients._fields, gradients, strict=True):
        assert oracle.relative_error(np.array(gradient), getattr(expected, name)) < FLOAT32, name


@pytest.mark.parametrize("time", [5, 40])
def test_a_checkpoint_computes_the_same_gradients(time):
    def through_checkpoint(*arrays):
        return mx.checkpoint(fused)(*arrays)

    inputs, dy, dstate = draw(True, time, 16, "mixed")
    found = find(inputs, dy, dstate, function=through_checkpoint)
    assert not too_large(differences(found, answer(inputs, dy, dstate)))


def test_gradients_are_added_up_where_an_input_is_used_twice():
    """Through two layers, where what one gives is what the next is asked with."""

    def twice(layer, q, k, v, log_decay, state):
        y, state = layer(q, k, v, log_decay, state)
        return layer(q + y, k, v, log_decay, state)

    inputs, dy, dstate = draw(True, 40, 8, "smooth", batch=1, heads=1)
    arrays = [mx.array(x) for x in inputs]
    cotangents = [mx.array(dy), mx.array(dstate)]
    _, found = mx.vjp(partial(twice, fused), arrays, cotangents)
    _, expected = mx.vjp(partial(twice, chunkwise), arrays, cotangents)
    for one, other in zip(found, expected, strict=True):
        assert oracle.relative_error(np.array(one), np.array(other)) < FLOAT32
