"""A decoded token in kernels is one read as any text is, and the oracle's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import oracle
import pytest
from metal.one_token import (
    CONFIGS,
    MLX,
    PAM_5M,
    begun,
    copied,
    model_of,
    ordinary,
    prompts,
    random_weights,
)

from mlx_pam.config import PRESETS, MemoryConfig, PAMConfig, SAMConfig, TransformerConfig
from mlx_pam.models import decode
from mlx_pam.ops import metal
from mlx_pam.ops.metal.decode import MOST_TEXTS

TOLERANCE = 1e-5

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def kernels(test: Callable) -> Callable:
    """Runs on each machine that can."""
    return pytest.mark.kernels(pytest.mark.usefixtures("machine")(test))


@kernels
@pytest.mark.parametrize(
    ("name", "texts"), [*zip(CONFIGS, (3, 1, 1, 3), strict=True)], ids=[*CONFIGS]
)
def test_twenty_greedy_tokens_and_the_state_after_them_are_the_ordinary_ones(name, texts):
    config = CONFIGS[name]
    weights = random_weights(config)
    model = model_of(config, weights)
    plain, tokens = begun(model, texts)
    fast = copied(plain, model)
    rows = prompts(texts, config)
    for _ in range(20):
        rows = [[*row, token] for row, token in zip(rows, tokens.tolist(), strict=True)]
        with ordinary():
            expected = plain.step(tokens)
        found = fast.step(tokens)
        assert found.dtype == np.float32
        assert oracle.relative_error(found, expected) < TOLERANCE
        tokens = expected.argmax(axis=-1)
        assert (found.argmax(axis=-1) == tokens).all()
    for row, logits in zip(rows, found, strict=True):
        exact = oracle.model_logits(config, weights, np.array([row]))[0, -1]
        assert oracle.relative_error(logits, exact) < TOLERANCE
    for name, array in plain.state().items():
        assert oracle.relative_error(fast.state()[name], array) < TOLERANCE, name


@kernels
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("PAM", "bfloat16"),
        ("SAM", "float16"),
        pytest.param("PAM", "float16", marks=pytest.mark.slow),
        pytest.param("SAM", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_weights_of_16_bits_are_read_as_they_are_and_nothing_else_is_rounded(name, dtype):
    """The ordinary step rounds its activations too, and so is further away."""
    config = CONFIGS[name]
    weights = random_weights(config, dtype)
    model = model_of(config, weights, dtype)
    wide, tokens = begun(model_of(config, weights), texts=1)
    plain, fast = copied(wide, model), copied(wide, model)
    with ordinary():
        expected, rounded = wide.step(tokens), plain.step(tokens)
    found = fast.step(tokens)
    assert oracle.relative_error(found, expected) < TOLERANCE
    for name, array in wide.state().items():
        assert oracle.relative_error(fast.state()[name], array) < TOLERANCE, name
    units = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
    assert 1e-4 < oracle.relative_error(rounded, found) < 10 * units[dtype]


@kernels
@pytest.mark.parametrize("family", ["pam", pytest.param("sam", marks=pytest.mark.slow)])
def test_layers_of_the_100m_models(family):
    config = dataclasses.replace(PRESETS[family]["100m"], num_layers=1, vocab_size=300)
    model = model_of(config, random_weights(config))
    plain, tokens = begun(model, texts=1)
    fast = copied(plain, model)
    with ordinary():
        expected = plain.step(tokens)
    assert oracle.relative_error(fast.step(tokens), expected) < TOLERANCE
    for name, array in plain.state().items():
        assert oracle.relative_error(fast.state()[name], array) < TOLERANCE, name


@kernels
def test_a_reset_token_forgets_what_came_before_it_in_its_text_alone():
    config = PAMConfig(**PAM_5M | {"num_layers": 2}, reset_token=7)
    model = model_of(config, random_weights(config))
    begin, _ = begun(model, texts=3)
    fresh = MLX.Decoder(model)
    fresh.restore({k: x if k == "positions" else 0 * x for k, x in begin.state().items()})
    tokens = np.array([7, 8, 7])
    with ordinary():
        expected = copied(begin, model).step(tokens)
        from_nothing = fresh.step(tokens)
    found = copied(begin, model).step(tokens)
    assert oracle.relative_error(found, expected) < TOLERANCE
    for row, forgets in enumerate([True, False, True]):
        same = oracle.relative_error(found[row], from_nothing[row]) < TOLERANCE
        assert same == forgets


# Which step is taken ----------------------------------------------------------------------------


@pytest.fixture
def on_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal, "available", lambda: True)
    monkeypatch.delenv("MLX_PAM_FORM", raising=False)


def runs(config, texts: int = 1, dtype: str = "float32") -> bool:
    model = MLX.build(config)
    model.set_dtype(getattr(mx, dtype))
    return decode.runs(model, texts)


@every_config
def test_without_metal_nothing_runs_in_kernels(config, monkeypatch):
    monkeypatch.setattr(metal, "available", lambda: False)
    assert not runs(config)


@every_config
@pytest.mark.usefixtures("on_metal")
def test_up_to_eight_texts_run_in_kernels(config):
    for texts in (1, MOST_TEXTS):
        for dtype in ("float32", "bfloat16", "float16"):
            assert runs(config, texts, dtype)
    assert MOST_TEXTS == 8
    assert not runs(config, MOST_TEXTS + 1)


@pytest.mark.usefixtures("on_metal")
@pytest.mark.parametrize("wish", ["recurrent", "chunkwise", "parallel", "fused", "auto", ""])
def test_the_environment_may_want_another_form(wish, monkeypatch):
    monkeypatch.setenv("MLX_PAM_FORM", wish)
    assert runs(CONFIGS["PAM"]) == (wish in ("fused", "auto", ""))


@pytest.mark.usefixtures("on_metal")
def test_weights_of_two_types_take_the_ordinary_path():
    model = MLX.build(CONFIGS["SAM"])
    model.head.weight = model.head.weight.astype(mx.bfloat16)
    assert not decode.runs(model, 1)


@pytest.mark.parametrize("family", ["pam", "sam"])
@pytest.mark.parametrize("scale", ["5m", "10m", "25m", "50m", "100m"])
def test_the_models_of_the_paper_are_supported(family, scale):
    assert decode.supported(PRESETS[family][scale])


def test_a_setting_that_the_kernels_do_not_know_is_supported_at_its_default_alone():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Varied(PAMConfig):
        novelty: float | None = None

    assert decode.supported(Varied(**PAM_5M))
    assert not decode.supported(Varied(**PAM_5M, novelty=1.0))


def test_a_gate_that_the_kernels_do_not_know_is_not_supported():
    config = PAMConfig(**PAM_5M)
    object.__setattr__(config, "protect", "none")  # as if there were such a gate
    assert not decode.supported(config)


@pytest.mark.parametrize(
    "config",
    [
        PAMConfig(**PAM_5M | {"head_dim": 12}),
        PAMConfig(**PAM_5M | {"head_dim": 136}),
        PAMConfig(**PAM_5M, phase_eps=0.1),
        SAMConfig(**PAM_5M | {"dim": 6}),
        TransformerConfig(**PAM_5M),
    ],
)
def test_other_models_are_not_supported(config: MemoryConfig):
    assert not decode.supported(config)


@pytest.mark.usefixtures("on_metal")
def test_the_ordinary_path_is_taken_where_the_kernels_do_not_run(monkeypatch):
    config = PAMConfig(**PAM_5M | {"head_dim": 136})
    model = model_of(config, random_weights(config))
    plain, tokens = begun(model, texts=1)
    monkeypatch.setattr(decode, "in_kernels", None)
    other = copied(plain, model)
    with pytest.warns(UserWarning, match="fused"):
        found = other.step(tokens)
    with ordinary():
        np.testing.assert_array_equal(found, plain.step(tokens))
