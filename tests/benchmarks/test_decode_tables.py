"""Kernels of a decoded token are counted as they are on a Mac, on any machine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from rich.console import Console

from mlx_pam.benchmarks import chips, cost_model, decode_tables, dispatches
from mlx_pam.benchmarks.decode_tables import as_on_metal, count
from mlx_pam.config import PRESETS
from mlx_pam.ops import metal

PAGE = Path(__file__).parents[2] / "docs" / "metal.md"


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


def test_the_table_says_that_it_is_a_model_and_the_documentation_has_its_figures() -> None:
    """About: another MLX compiles the layers to some kernels more or less."""
    console = Console(record=True, width=120)
    console.print(decode_tables.table(cost_model.published(chips.BY_WORD["m4-max"])))
    text = console.export_text()
    assert "MODEL" in text
    predicted = figures(r"^ +(\d+[km] +(?:layers|kernels) +\d.*)$", text)
    assert len(predicted) == 2 * len(PRESETS["pam"])
    shown = figures(r"^\| (\d+m \| (?:layers|kernels) \|.*) \|$", PAGE.read_text("utf-8"))
    assert len(shown) == 4
    for row, numbers in shown.items():
        assert numbers == pytest.approx(predicted[row], rel=0.1)


def figures(rows: str, text: str) -> dict[tuple[str, str], list[float]]:
    """The numbers of each row by scale and step."""
    cells = [row.replace("|", " ").replace(",", "").split() for row in re.findall(rows, text, re.M)]
    return {(scale, step): [float(x) for x in numbers] for scale, step, *numbers in cells}


def test_types_of_16_bits_halve_the_bytes_of_the_weights_alone() -> None:
    config = PRESETS["pam"]["100m"]
    (long, state), (short, same) = (cost_model.decode(config, 0, 83, n) for n in (4, 2))
    logits = 4 * config.vocab_size
    assert short.bytes - logits == (long.bytes - logits) / 2
    assert same == state
