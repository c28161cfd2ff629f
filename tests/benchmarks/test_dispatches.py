"""Kernels are counted in the graph, and the cost model's figures for them are these counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.backend import get_backend
from mlx_pam.benchmarks import cost_model, dispatches
from mlx_pam.config import PRESETS, PAMConfig
from mlx_pam.models.decode import in_kernels
from mlx_pam.ops.metal import decode, launch, operator


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """What runs is compiled, which the tests as a whole are not."""
    mx.enable_compile()
    yield
    mx.disable_compile()


def test_views_are_free_and_a_concatenation_copies_each_input() -> None:
    x = mx.ones((2, 3))
    assert dispatches.count(lambda x: [mx.transpose(x)[None]], x) == 0
    assert dispatches.count(lambda x: [x @ x.T], x) == 1
    assert dispatches.count(lambda x: [mx.concatenate([x, x.T.reshape(2, 3), x])], x) == 3


def test_a_function_with_gradients_of_its_own_is_counted_by_what_is_in_it() -> None:
    @mx.custom_function
    def product(x: mx.array, y: mx.array) -> mx.array:
        return x @ y

    assert dispatches.count(lambda x: [product(x, x)], mx.ones((4, 4))) == 1


def test_pointwise_work_is_one_kernel() -> None:
    assert dispatches.count(lambda x: [mx.exp(x * x + 1) * x], mx.ones((4, 4))) == 1


@pytest.mark.parametrize("form", ["parallel", "chunkwise", "recurrent"])
def test_the_cost_model_has_the_counts_of_the_graph(form: str) -> None:
    time, units = (3, 3) if form == "recurrent" else (512, 1)
    found = [dispatches.of_retrieval(form, time, backward) / units for backward in (False, True)]
    assert found == pytest.approx(cost_model.KERNELS[form], rel=0.05)


def test_each_span_of_chunks_has_its_kernels() -> None:
    one, four = (dispatches.of_retrieval("chunkwise", 1024 * n, False) for n in (1, 4))
    assert 3.5 * one < four < 4.5 * one


def test_a_decoded_token_takes_as_many_for_every_layer_whatever_the_width() -> None:
    narrow, wide = (
        PAMConfig(dim=8 * n, num_layers=2, num_heads=n, head_dim=8, vocab_size=32) for n in (1, 3)
    )
    assert dispatches.of_a_token(narrow) == dispatches.of_a_token(wide)
    deep = [dispatches.of_a_token(dataclasses.replace(narrow, num_layers=n)) for n in (2, 4, 6)]
    assert deep[2] - deep[1] == deep[1] - deep[0] > 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of our own kernels as they are launched, without a GPU to run them."""
    names: list[str] = []

    def build(name: str, *_):
        def kernel(*, output_shapes, output_dtypes, **_) -> list[mx.array]:
            names.append(name)
            return [mx.zeros(*array) for array in zip(output_shapes, output_dtypes, strict=True)]

        return kernel

    for module in (launch, decode):
        monkeypatch.setattr(module, "build", build)
    return names


def test_a_step_in_kernels_has_as_many_as_the_cost_model_says(launched: list[str]) -> None:
    config = PAMConfig(dim=16, num_layers=3, num_heads=2, head_dim=8, vocab_size=32)
    model = get_backend("mlx").build(config)
    phases = model.phases(np.zeros((1, 1)))
    in_kernels(model, mx.zeros((1, 1), mx.int32), phases, [mx.zeros((1, 2, 2, 8, 8))] * 3)
    assert len(launched) == cost_model.decode_kernels(config)


def test_the_fused_form_has_as_many_kernels_as_the_cost_model_says(launched: list[str]) -> None:
    rows, square = (1, 100, 2, 2, 8), (1, 2, 2, 8, 8)
    inputs = [mx.zeros(shape) for shape in (rows, rows, rows, rows[:3], square)]
    parts = {
        backward: cost_model.operator("fused", cost_model.Shape(1, 100, 2, 8), 32, backward)
        for backward in (False, True)
    }
    operator.retrieve(*inputs)
    assert len(launched) == sum(part.kernels for part in parts[False])
    launched.clear()
    mx.vjp(lambda *x: list(operator.retrieve(*x)), inputs, [inputs[0], inputs[4]])
    assert len(launched) == sum(part.kernels for part in parts[True])


def test_the_presets_are_counted_without_their_weights() -> None:
    pam, transformer = (PRESETS[family]["5m"] for family in ("pam", "transformer"))
    assert dispatches.of_a_token(pam) > dispatches.of_a_token(transformer) > 0
