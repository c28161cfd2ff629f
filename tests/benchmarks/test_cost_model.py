"""The cost model counts what is there: operations, arrays, and their growth with the text."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_pam.backend import get_backend
from mlx_pam.benchmarks import chips, cost_model, flops
from mlx_pam.benchmarks.cost_model import Part, Rates, Shape
from mlx_pam.config import PRESETS, PAMConfig, TransformerConfig

PAM = PAMConfig(dim=12, num_layers=2, num_heads=3, head_dim=8, vocab_size=64)
TRANSFORMER = TransformerConfig(dim=24, num_layers=2, num_heads=2, head_dim=8, vocab_size=64)
MACHINE = cost_model.published(chips.BY_WORD["m4-max"])
FORMS = ("recurrent", "parallel", "chunkwise", "fused")
each_form = pytest.mark.parametrize("form", FORMS)


def total(parts: list[Part], field: str) -> float:
    return sum(getattr(part, field) for part in parts)


@given(
    form=st.sampled_from(["parallel", "chunkwise"]),
    time=st.integers(1, 9000),
    chunk=st.sampled_from([16, 32, 64]),
)
def test_operations_of_separate_products_are_those_of_the_benchmarks(form, time, chunk) -> None:
    shape = Shape(2, time, PAM.num_heads, PAM.head_dim)
    found = total(cost_model.operator(form, shape, chunk), "operations")
    size, span = (time, 1) if form == "parallel" else (chunk, cost_model.CHUNKS_PER_SPAN)
    expected = flops.pam(PAM, time, chunk=size, chunks_per_span=span)["memory"]
    assert found * PAM.num_layers == pytest.approx(2 * time * expected)


@pytest.mark.parametrize("chunk", [8, 32, 64])
def test_operations_of_the_kernels_are_those_of_their_tiles(chunk: int) -> None:
    d, tiles = 16, range(chunk // 8)
    product = 2 * 8 * 8 * d * 4  # of a tile of complex scores, or its use
    state = 2 * d * d * 4  # a token writes or reads it
    met = sum(1 for row, column in itertools.product(tiles, tiles) if column <= row)
    forward = 2 * met * product + chunk * 2 * state
    backward = 5 * met * product + chunk * 3 * state + 2 * chunk * state
    shape = Shape(1, chunk, 1, d)
    assert total(cost_model.operator("fused", shape, chunk), "operations") == forward
    both = cost_model.operator("fused", shape, chunk, backward=True)
    assert total(both, "operations") == forward + backward


@pytest.mark.parametrize("form", ["recurrent", "parallel", "chunkwise"])
def test_gradients_by_separate_operations_are_two_forward_passes_more(form: str) -> None:
    passes = [cost_model.operator(form, Shape(1, 300, 2, 16), 32, b) for b in (False, True)]
    for field in ("operations", "bytes"):
        assert total(passes[1], field) == pytest.approx(3 * total(passes[0], field))


@each_form
@given(time=st.integers(1, 4000), batch=st.integers(1, 4), heads=st.integers(1, 8))
def test_bytes_are_those_of_the_arguments_at_least(form, time, batch, heads) -> None:
    shape = Shape(batch, time, heads, 16, 2)
    arguments = 4 * 2 * batch * time * heads * 2 * 16  # q, k, v and y
    assert total(cost_model.operator(form, shape, 32), "bytes") >= arguments


def test_the_kernels_move_no_scores() -> None:
    """Twice the chunk: twice the scores, half the states."""
    for form, sign in (("fused", -1), ("chunkwise", 1)):
        bytes_of = [
            total(cost_model.operator(form, Shape(1, 4096, 6, 16), chunk), "bytes")
            for chunk in (64, 128)
        ]
        assert np.sign(bytes_of[1] - bytes_of[0]) == sign


@each_form
@pytest.mark.parametrize("backward", [False, True])
def test_longer_windows_take_longer(form: str, backward: bool) -> None:
    seconds = [
        cost_model.seconds(cost_model.operator(form, Shape(1, time, 6, 64), 64, backward), MACHINE)
        for time in (64, 512, 1024, 2048, 4096, 8192)
    ]
    assert seconds == sorted(seconds)
    growth = seconds[-1] / seconds[-2]
    assert 3.5 < growth < 4.1 if form == "parallel" else 1.5 < growth < 2.1


def test_the_state_that_a_token_moves_is_the_decoders(backend) -> None:
    decoder = backend.Decoder(backend.build(PAM), 0)
    decoder.prefill([[1, 2, 3]])
    held = sum(x.nbytes for name, x in decoder.state().items() if name != "positions")
    _, state = cost_model.decode(PAM, 3, kernels=0)
    assert state.bytes == 2 * held  # read and written


def test_the_cache_that_a_token_reads_is_the_decoders(backend) -> None:
    decoder = backend.Decoder(backend.build(TRANSFORMER), 0)
    decoder.prefill([[1, 2, 3, 4, 5]])
    held = sum(x.nbytes for name, x in decoder.state().items() if name != "positions")
    _, cache = cost_model.decode(TRANSFORMER, 5, kernels=0)
    assert cache.bytes == held


@pytest.mark.parametrize("config", [PAM, TRANSFORMER], ids=["pam", "transformer"])
def test_a_token_reads_the_weights_that_there_are_and_writes_its_logits(config) -> None:
    backend = get_backend("mlx")
    weights = sum(x.nbytes for x in backend.weights(backend.build(config)).values())
    read, _ = cost_model.decode(config, 0, kernels=0)
    assert read.bytes == weights + 4 * config.vocab_size


def test_operations_of_a_token_are_those_of_the_benchmarks() -> None:
    parts = cost_model.decode(TRANSFORMER, 9, kernels=0)
    # the last of ten tokens sees all of them; the benchmarks' count is of the mean over a window
    masked = flops.transformer(TRANSFORMER, 10, causal=False)
    assert parts[1].operations == masked["attention"]
    assert parts[0].operations == masked["total"] - masked["attention"]
    pam = flops.pam(PAM, 1, chunk=1)
    assert cost_model.decode(PAM, 9, 0)[0].operations == pam["total"] - pam["memory"]


def test_a_token_costs_the_same_behind_any_text_but_with_a_cache_more() -> None:
    pam, transformer = (
        [
            cost_model.seconds(cost_model.decode(PRESETS[family]["100m"], n, 0), MACHINE)
            for n in (0, 2048, 32768)
        ]
        for family in ("pam", "transformer")
    )
    assert pam[0] == pam[1] == pam[2]
    assert transformer[0] < transformer[1] < transformer[2]


def test_a_training_step_has_the_operations_of_the_benchmarks() -> None:
    parts = cost_model.training(PAM, "chunkwise", 3, 256, chunk=32)
    one_span = flops.pam(PAM, 256, chunk=32, chunks_per_span=32)
    assert total(parts, "operations") == pytest.approx(3 * 3 * 256 * one_span["total"])
    assert parts[-1].bytes == 7 * 4 * sum(
        x.size for x in get_backend("mlx").weights(get_backend("mlx").build(PAM)).values()
    )


def test_a_part_is_bound_by_operations_or_bytes_and_kernels_come_on_top() -> None:
    rates = Rates("test", product=100.0, fused=50.0, bandwidth=10.0, kernel_seconds=0.5)
    assert cost_model.seconds([Part("a", 200.0, 10.0)], rates) == 2.0
    assert cost_model.seconds([Part("a", 200.0, 10.0, fused=True)], rates) == 4.0
    assert cost_model.seconds([Part("a", 200.0, 30.0, kernels=3)], rates) == 4.5
    assert cost_model.seconds([Part("a", 100.0), Part("b", 0.0, 5.0)], rates) == 1.5


@each_form
def test_a_faster_chip_is_never_slower(form: str) -> None:
    parts = cost_model.operator(form, Shape(4, 2048, 6, 64), 64)
    for field in ("product", "fused", "bandwidth"):
        faster = dataclasses.replace(MACHINE, **{field: 2 * getattr(MACHINE, field)})
        assert cost_model.seconds(parts, faster) <= cost_model.seconds(parts, MACHINE)


def test_halving_the_numbers_halves_all_bytes_of_rows() -> None:
    """What stays are states and decays, which are float32 in every type."""
    long, short = (
        {part.name: part.bytes for part in cost_model.operator("fused", shape, 32, True)}
        for shape in (Shape(1, 512, 2, 16), Shape(1, 512, 2, 16, 2))
    )
    rows = {"states": 2, "outputs": 4, "gradients": 7}
    for name, count in rows.items():
        assert long[name] - short[name] == 512 * 2 * count * 2 * 16 * 2
