"""The PyTorch operator without kernels: decays and dtypes."""

from __future__ import annotations

from functools import partial

import numpy as np
import oracle
import pytest
from drawing import Inputs, draw
from identities import assert_a_decay_just_below_one_carries, assert_a_slow_decay_has_no_bias

from mlx_pam.errors import ConfigError

torch = pytest.importorskip("torch")
retrieval = pytest.importorskip("mlx_pam.torch.ops.retrieval")

forms = pytest.mark.parametrize("form", ["recurrent", "parallel", "chunkwise"])
fields = pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])


@torch.no_grad()
def values(form: str, inputs: Inputs) -> tuple[np.ndarray, ...]:
    outputs = retrieval.retrieve(*map(torch.from_numpy, inputs), form=form)
    return tuple(x.numpy() for x in outputs)


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
@forms
def test_no_write_into_the_state_is_rounded_to_bfloat16(form, is_complex):
    inputs, *_ = draw(is_complex, 130, 16, "mixed")
    *rows, log_decay, state = map(torch.from_numpy, inputs)
    halves = [x.bfloat16() for x in rows]
    _, final = retrieval.retrieve(*halves, log_decay, state, form=form)
    assert final.dtype == torch.float32
    rounded = Inputs(*(x.float().numpy() for x in halves), *inputs[3:])
    assert oracle.relative_error(final.numpy(), oracle.retrieve(*rounded)[1]) < 1e-6


@pytest.mark.parametrize("name", Inputs._fields)
def test_integers_raise_and_are_named(name):
    inputs, *_ = draw(True, 3, 4, "smooth")
    tensors = {name: torch.from_numpy(x) for name, x in inputs._asdict().items()}
    tensors[name] = tensors[name].int()
    with pytest.raises(ConfigError, match=f"^{name} must be floating point, got int32$"):
        retrieval.retrieve(**tensors)


def test_an_empty_batch_raises():
    inputs, *_ = draw(True, 3, 4, "smooth")
    with pytest.raises(ConfigError, match="must be at least 1, got 0, 3, 2 and 4"):
        retrieval.retrieve(*(torch.from_numpy(x[:0]) for x in inputs))
