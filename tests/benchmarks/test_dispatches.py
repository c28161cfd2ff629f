"""Kernels are counted in the graph, and the cost model's figures for them are these counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import mlx.core as mx
import pytest

from mlx_pam.benchmarks import cost_model, dispatches
from mlx_pam.config import PRESETS, PAMConfig


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


def test_the_presets_are_counted_without_their_weights() -> None:
    pam, transformer = (PRESETS[family]["5m"] for family in ("pam", "transformer"))
    assert dispatches.of_a_token(pam) > dispatches.of_a_token(transformer) > 0
