"""Kernels of a decoded token are counted as they are on a Mac, on any machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import mlx.core as mx
import pytest
from rich.console import Console

from mlx_pam.benchmarks import chips, cost_model, decode_tables, dispatches
from mlx_pam.benchmarks.decode_tables import as_on_metal, count
from mlx_pam.config import PRESETS
from mlx_pam.ops import metal


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """What runs is compiled, which the tests as a whole are not."""
    mx.enable_compile()
    yield
    mx.disable_compile()


def test_a_norm_and_a_kernel_of_ours_are_one_each() -> None:
    x = mx.ones((1, 5, 2, 2, 8))
    decay, state, scale = mx.zeros((1, 5, 2)), mx.zeros((1, 2, 2, 8, 8)), mx.ones((8,))
    with as_on_metal():
        assert dispatches.count(lambda *a: [mx.fast.rms_norm(*a, 1e-6)], x, scale) == 1
        assert dispatches.count(lambda *a: list(metal.fused(*a)), x, x, x, decay, state) == 1


@pytest.mark.skipif(mx.metal.is_available(), reason="there is Metal")
def test_afterwards_the_machine_is_what_it_was() -> None:
    with as_on_metal():
        assert metal.available()
    assert not metal.available()
    x = mx.ones((2, 8))
    assert mx.array_equal(mx.fast.rms_norm(x, mx.ones((8,)), 0.0), x)


@pytest.mark.parametrize("family", ["pam", "sam"])
def test_a_token_in_kernels_starts_five_a_layer_and_three_more(family: str) -> None:
    config = PRESETS[family]["5m"]
    kernels = count(config, "kernels")
    assert kernels == (5, 3)
    assert kernels.of(config) == cost_model.decode_kernels(config)
    assert count(config, "layers").layer > 5 * kernels.layer


def test_every_layer_starts_as_many() -> None:
    config = PRESETS["pam"]["5m"]
    deep = dataclasses.replace(config, num_layers=5)
    found = decode_tables._count(deep, "layers")
    assert found == count(config, "layers").of(deep)


def test_the_table_says_that_it_is_a_model_and_has_every_scale() -> None:
    console = Console(record=True, width=120)
    console.print(decode_tables.table(cost_model.published(chips.BY_WORD["m1"])))
    text = console.export_text()
    assert "MODEL" in text
    assert all(text.count(f" {scale} ") == 2 for scale in PRESETS["pam"])


def test_types_of_16_bits_halve_the_bytes_of_the_weights_alone() -> None:
    config = PRESETS["pam"]["100m"]
    (long, state), (short, same) = (cost_model.decode(config, 0, 83, n) for n in (4, 2))
    logits = 4 * config.vocab_size
    assert short.bytes - logits == (long.bytes - logits) / 2
    assert same == state
