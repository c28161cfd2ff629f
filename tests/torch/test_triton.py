"""The fused form, Triton kernels, is the token loop of the oracle; and where it is chosen."""

from __future__ import annotations

import importlib.util
import itertools
from functools import partial
from types import SimpleNamespace

import kernel_process
import numpy as np
import oracle
import pytest
from drawing import CONSTANT_DECAYS, answer, draw
from identities import (
    assert_a_decay_just_below_one_carries,
    assert_a_slow_decay_has_no_bias,
    assert_a_zero_decay_forgets,
)

from mlx_pam.errors import BackendError

torch = pytest.importorskip("torch")
kernel_checks = pytest.importorskip("kernel_checks")
kernels = pytest.importorskip("mlx_pam.torch.kernels")
retrieval = pytest.importorskip("mlx_pam.torch.ops.retrieval")

TOLERANCE = 1e-5  # of values and gradients, relative to the largest entry, float32
HALVES = {"float16": 3e-3, "bfloat16": 2e-2}

fields = pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton, on Linux"
)
MACHINES = [pytest.param("interpreter", marks=needs_triton)]
if kernels.ABSENCE is None:
    MACHINES.append("gpu")


@pytest.fixture(scope="module", params=MACHINES)
def run(request):
    """A function that calls another one in the process that has the kernels."""
    with kernel_process.start(request.param) as pool:
        yield lambda function, *args, **options: pool.submit(function, *args, **options).result()


def assert_small(errors: dict[str, float], tolerance: float = TOLERANCE) -> None:
    assert {name: error for name, error in errors.items() if not error <= tolerance} == {}


@fields
@pytest.mark.parametrize("time", [1, 2, 15, 16, 17, 31, 32, 33, 65, 130])
def test_fused_is_the_token_loop_at_every_length(run, time, is_complex):
    assert_small(run(kernel_process.errors, is_complex, time, 16, "mixed"))


@fields
@pytest.mark.parametrize(
    ("dim", "time"), [(8, 1), (8, 40), (12, 1), (12, 40), (32, 40), (64, 1), (64, 40)]
)
def test_fused_is_the_token_loop_at_every_width(run, dim, time, is_complex):
    assert_small(run(kernel_process.errors, is_complex, time, dim, "mixed", batch=1))


@fields
@pytest.mark.parametrize("decay", [*CONSTANT_DECAYS, "smooth", "cliff"])
def test_every_decay_from_one_to_zero_is_exact(run, decay, is_complex):
    assert_small(run(kernel_process.errors, is_complex, 70, 16, decay, batch=1))


@pytest.mark.slow
@fields
@pytest.mark.parametrize("decay", [*CONSTANT_DECAYS, "smooth", "mixed", "cliff"])
@pytest.mark.parametrize("dim", [8, 16, 64])
@pytest.mark.parametrize("time", [1, 2, 16, 17, 63, 64, 65, 130])
def test_every_combination_is_the_token_loop(run, time, dim, decay, is_complex):
    assert_small(run(kernel_process.errors, is_complex, time, dim, decay, batch=1))


@pytest.mark.slow
@fields
def test_the_widest_heads_are_the_token_loop(run, is_complex):
    assert_small(run(kernel_process.errors, is_complex, 70, 128, "mixed", batch=1, heads=1))


@fields
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("decay", ["smooth", "mixed", 1 - 1e-5])
def test_half_precision_inputs_keep_float32_decays_and_state(run, decay, dtype, is_complex):
    assert_small(run(kernel_process.errors, is_complex, 130, 16, decay, dtype), HALVES[dtype])


@fields
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_outputs_and_gradients_have_the_types_of_their_inputs(run, dtype, is_complex):
    found = run(kernel_process.fused, *draw(is_complex, 3, 8, "smooth"), dtype)
    types = [dtype, "float32", dtype, dtype, dtype, "float32", "float32"]
    assert found.dtypes == types


def test_a_float16_state_can_be_larger_than_any_float16(run):
    inputs, dy, dstate = draw(True, 40, 16, 1.0)
    inputs = inputs._replace(q=inputs.q * np.float32(1e-4), state=inputs.state * np.float32(1e6))
    found = run(kernel_process.fused, inputs, dy, dstate, "float16")
    y, _ = oracle.retrieve(*inputs)
    assert oracle.relative_error(found.y, y) < HALVES["float16"]


@fields
@pytest.mark.parametrize("cuts", [(1,), (16,), (17,), (1, 2, 33)])
def test_a_sequence_in_pieces_is_the_sequence(run, cuts, is_complex):
    assert_small(run(kernel_process.errors, is_complex, 40, 8, "mixed", cuts=cuts))


@fields
def test_a_zero_decay_forgets_to_the_last_bit(run, is_complex):
    def gradients_of(*question):
        return run(kernel_process.fused, *question).gradients

    assert_a_zero_decay_forgets(is_complex, partial(run, kernel_process.values), gradients_of)


@fields
def test_a_decay_just_below_one_carries_a_write_over_2048_steps(run, is_complex):
    values = partial(run, kernel_process.values)
    assert_a_decay_just_below_one_carries(is_complex, values, TOLERANCE)


@fields
def test_a_slow_decay_has_no_bias(run, is_complex):
    assert_a_slow_decay_has_no_bias(is_complex, partial(run, kernel_process.values))


@fields
def test_rows_need_not_lie_one_after_the_other(run, is_complex):
    inputs, dy, dstate = draw(is_complex, 20, 8, "smooth")
    found = run(kernel_checks.fused_of_strided_rows, inputs, dy, dstate)
    assert_small(kernel_process.differences(found, answer(inputs, dy, dstate)))


@pytest.mark.parametrize("used", [0, 1], ids=["y", "final state"])
def test_a_loss_may_look_at_one_output_alone(run, used):
    inputs, *cotangents = draw(True, 20, 8, "smooth")
    cotangents[1 - used][:] = 0
    found = run(kernel_checks.gradients_of_one_output, inputs, used, cotangents[used])
    expected = answer(inputs, *cotangents).gradients
    for name, gradient in zip(oracle.Gradients._fields, found, strict=True):
        assert oracle.relative_error(gradient, getattr(expected, name)) < TOLERANCE, name


@pytest.mark.parametrize("time", [1, 20])
def test_torch_compile_takes_the_operator_in_one_piece(run, time):
    inputs, dy, dstate = draw(True, time, 8, "smooth")
    found = run(kernel_process.fused, inputs, dy, dstate, wrap=kernel_checks.compiled)
    assert_small(kernel_process.differences(found, answer(inputs, dy, dstate)))


@pytest.mark.parametrize("time", [1, 20])
def test_the_operators_keep_the_promises_that_torch_compile_relies_on(run, time):
    run(kernel_checks.check_operators, draw(True, time, 8, "smooth")[0])


@pytest.mark.parametrize(
    ("dim", "dtype", "named"), [(136, "float32", "136"), (16, "float64", "float64")]
)
def test_inputs_that_the_kernels_do_not_take_raise(run, dim, dtype, named):
    inputs, dy, dstate = draw(True, 3, dim, "smooth")
    with pytest.raises(BackendError, match=f"fused.*{named}"):
        run(kernel_process.fused, inputs, dy, dstate, dtype)


@pytest.mark.skipif(kernels.ABSENCE is None, reason="the kernels can run here")
def test_fused_raises_and_says_why_where_it_cannot_run():
    inputs, *_ = draw(True, 3, 8, "smooth")
    with pytest.raises(BackendError, match=f"fused.*{kernels.ABSENCE}"):
        retrieval.retrieve(*map(torch.from_numpy, inputs), form="fused")
    assert "fused" not in retrieval.FORMS


def on_gpu(time: int, dim: int, dtype=torch.float32) -> SimpleNamespace:
    """As much of a tensor on a GPU as the choice of a form looks at."""
    return SimpleNamespace(is_cuda=True, shape=(1, time, 2, 2, dim), dtype=dtype)


@pytest.mark.parametrize("time", [1, 70])
def test_auto_is_fused_on_a_gpu(monkeypatch, time):
    monkeypatch.setattr(kernels, "ABSENCE", None)
    assert retrieval._best_form(on_gpu(time, 64)) == "fused"


@pytest.mark.parametrize(("time", "form"), [(1, "recurrent"), (70, "chunkwise")])
def test_auto_falls_back_with_one_notice_that_says_why(monkeypatch, recwarn, time, form):
    monkeypatch.setattr(kernels, "ABSENCE", None)
    for width, _ in itertools.product([136, 160], range(3)):
        assert retrieval._best_form(on_gpu(time, width)) == form
    assert [str(width) in str(w.message) for width, w in zip([136, 160], recwarn, strict=True)]
