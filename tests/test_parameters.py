"""The table of weights: counts to the last one, and initial values that keep a signal's scale."""

from __future__ import annotations

import dataclasses
import math

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.backend import get_backend
from mlx_pam.config import (
    PRESETS,
    VARIANTS,
    ModelConfig,
    PAMConfig,
    SAMConfig,
    TransformerConfig,
    variant,
)
from mlx_pam.parameters import initial_weights, is_decayed, parameter_count, parameter_table

PUBLISHED_COUNTS = {
    "5m": 5_002_000,
    "10m": 10_002_760,
    "25m": 25_210_420,
    "50m": 50_002_920,
    "100m": 102_704_768,
}
SMALL = ("300k", "1m", "3m")  # named after their parameters without the embedding
SCALES = (*SMALL, *PUBLISHED_COUNTS)
LARGER = [pytest.param(scale, marks=pytest.mark.slow) for scale in ("25m", "50m", "100m")]
AT_THE_START = [*SMALL, "5m", "10m", *LARGER]
BYTES = 257
TINY = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 40}


def closed_form(c: PAMConfig) -> int:
    """The count written out without the table; a complex number counts twice."""
    hidden, width = c.expand * c.dim, c.num_heads * c.head_dim
    gates = width if c.protect == "channel" else c.num_heads
    unit = 2 * 3 * hidden * c.dim + hidden
    memory = (
        2 * (3 * width * c.dim + width * c.dim)
        + c.num_heads * (2 * c.dim + 1)
        + gates * (c.dim + 1)
    )
    block = unit + memory + 2 * c.dim + 2
    return 2 * c.vocab_size * c.dim + c.num_layers * block + 2 * c.dim**2 + 2 * c.dim


@pytest.mark.parametrize(("scale", "count"), PUBLISHED_COUNTS.items())
def test_counts_are_the_published_ones(scale, count):
    assert parameter_count(dataclasses.replace(PRESETS["pam"][scale], protect="channel")) == count
    assert parameter_count(PRESETS["pam"][scale]) == closed_form(PRESETS["pam"][scale])


def named_count(family: str, scale: str) -> int:
    """The parameters that a scale is named after: below 5m without the embedding."""
    table = parameter_table(PRESETS[family][scale])
    return sum(p.size for p in table.values() if scale not in SMALL or p.kind != "embedding")


@pytest.mark.parametrize("scale", SCALES)
def test_the_transformer_has_the_parameters_of_pam(scale):
    c = PRESETS["transformer"][scale]
    assert named_count("transformer", scale) == pytest.approx(named_count("pam", scale), rel=0.01)
    attention = 4 * c.dim * c.num_heads * c.head_dim
    unit = 3 * c.dim * c.hidden_dim
    block = attention + unit + 2 * c.dim
    assert parameter_count(c) == c.vocab_size * c.dim + c.num_layers * block + c.dim
    assert c.hidden_dim % 8 == 0
    assert abs(c.hidden_dim - 8 / 3 * c.dim) <= 4


@pytest.mark.parametrize("scale", SCALES)
def test_the_matched_sam_has_the_layers_heads_state_and_parameters_of_pam(scale):
    c, pam = PRESETS["sam-matched"][scale], PRESETS["pam"][scale]
    assert (c.num_layers, c.num_heads) == (pam.num_layers, pam.num_heads)
    state = 2 * pam.head_dim**2
    nearest = min(range(2, 200, 2), key=lambda d: abs(d**2 - state))
    assert c.head_dim == nearest
    assert c.head_dim**2 == pytest.approx(state, rel=0.06)
    assert named_count("sam-matched", scale) == pytest.approx(named_count("pam", scale), rel=0.01)


@pytest.mark.parametrize("scale", SMALL)
def test_small_presets_agree_over_bytes_too(scale):
    counts = [
        parameter_count(dataclasses.replace(presets[scale], vocab_size=BYTES))
        for presets in PRESETS.values()
    ]
    assert max(counts) < 1.02 * min(counts)


@pytest.mark.parametrize("family", PRESETS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_preset_has_about_the_size_of_its_name(family, scale):
    size = float(scale[:-1]) * {"k": 1e3, "m": 1e6}[scale[-1]]
    assert named_count(family, scale) == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize(
    "config",
    [
        PAMConfig(**TINY),
        PAMConfig(**TINY, protect="channel"),
        SAMConfig(**TINY),
        SAMConfig(**TINY, protect="channel"),
        SAMConfig(**TINY, gated_unit="swiglu"),
        TransformerConfig(**TINY),
    ],
    ids=str,
)
def test_trainable_tensors_are_those_of_the_table(backend, config):
    """No rotary angle, no mask: what would be trained is exactly the list, and all of it real."""
    trainable = backend.weights(backend.build(config))
    assert {name: value.shape for name, value in trainable.items()} == {
        name: parameter.shape for name, parameter in parameter_table(config).items()
    }
    assert {value.dtype for value in trainable.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("m", "n"), [(36, 12), (12, 36), (12, 12)])
def test_complex_maps_are_semi_unitary_with_gain(m, n):
    """W^H W or W W^H is max(1, m/n) times the identity: a white input keeps its RMS."""
    config = PAMConfig(dim=12, num_layers=1, num_heads=3, head_dim=4, vocab_size=7)
    name = {
        (36, 12): "layers.0.unit.up_gate.weight",
        (12, 36): "layers.0.unit.down.weight",
        (12, 12): "head.weight",
    }[m, n]
    re, im = initial_weights(config)[name][:, :m].astype(np.float64)  # the first, where stacked
    w = re + 1j * im
    gram = w.conj().T @ w if m >= n else w @ w.conj().T
    np.testing.assert_allclose(gram, max(1.0, m / n) * np.eye(min(m, n)), atol=1e-5)


def test_one_seed_is_one_network_and_another_seed_another():
    config = PAMConfig(**TINY)
    first, again, other = (initial_weights(config, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["embedding.weight"], other["embedding.weight"])


def test_weight_decay_spares_norms_biases_gates_and_residual_scales():
    table = parameter_table(PAMConfig(**TINY))
    reached = {
        name.removeprefix("layers.0.") for name, parameter in table.items() if is_decayed(parameter)
    }
    maps = {"unit.up_gate", "unit.down", "memory.qkv", "memory.out", "head", "embedding"}
    assert {name for name in reached if not name.startswith("layers.1.")} == {
        f"{m}.weight" for m in maps
    }


def at_the_start(family: str, scale: str) -> ModelConfig:
    """The preset, over bytes where it is small."""
    config = PRESETS[family][scale]
    return dataclasses.replace(config, vocab_size=BYTES) if scale in SMALL else config


def assert_it_guesses(config: ModelConfig) -> None:
    """The loss on random tokens is that of a uniform guess."""
    model = get_backend("mlx").build(config)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(2, 129))
    logits = model(mx.array(ids[:, :-1]))
    losses = (
        mx.logsumexp(logits, axis=-1)
        - mx.take_along_axis(logits, mx.array(ids[:, 1:, None]), -1)[..., 0]
    )
    assert losses.mean().item() == pytest.approx(math.log(config.vocab_size), abs=0.1)


@pytest.mark.parametrize("family", PRESETS)
@pytest.mark.parametrize("scale", AT_THE_START)
def test_initial_loss_is_that_of_a_uniform_guess(family, scale):
    assert_it_guesses(at_the_start(family, scale))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("family", ["pam", "sam-matched"])
def test_initial_loss_of_a_variant_is_that_of_a_uniform_guess(family, name):
    if family == "pam" or name not in ("phase-qk", "smooth-phase"):  # pam alone has them
        assert_it_guesses(variant(at_the_start(family, "1m"), name))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("family", ["pam", "sam-matched"])
def test_a_variants_maps_and_taps_keep_the_rms(family, name):
    """Taps of 1 and 1/2 make it sqrt(5)/2, or up to 3/2 where one token resembles the next."""
    if family == "sam-matched" and name in ("phase-qk", "smooth-phase"):
        pytest.skip("the phase of a real number is its sign")
    config = variant(at_the_start(family, "1m"), name)
    model = get_backend("mlx").build(config)
    planes = model.field.planes

    def rms(z: mx.array) -> float:
        return (mx.square(z).mean() * planes).sqrt().item()

    ids = mx.array(np.random.default_rng(1).integers(config.vocab_size, size=(1, 64)))
    phases, z = model.phases(np.arange(64)), model.embedding_norm(model.embedding(ids))
    for layer, parts in zip(model.layers, config.blocks, strict=True):
        if "unit" in parts:
            assert rms(layer.unit.up_gate(layer.unit_norm(z))) == pytest.approx(1.0, rel=0.15)
        if "attention" in parts:
            x = layer.attention_norm(z)
            assert rms(layer.attention.qkv(x)) == pytest.approx(1.0, rel=0.15)
            assert rms(layer.attention(x, phases)[0]) < 1.15  # a mean of values
        if "memory" in parts:
            qkv = layer.memory.qkv(layer.memory_norm(z))
            assert rms(qkv) == pytest.approx(1.0, rel=0.15)
            if config.conv_width > 1:
                qkv, _ = layer.memory.convolution(qkv)
                assert 1.0 < rms(qkv) < 1.55
            if config.qk_norm:
                q = layer.memory._normed(qkv[:, :, : config.num_heads])
                length = {"head": config.head_dim**-0.5, "phase": 1.0}[config.qk_norm]
                assert rms(q) == pytest.approx(length, rel=0.001)
        before = rms(z)
        z, _ = layer(z, phases)
        assert before <= rms(z) < before + 8 * config.alpha_pam_init + 1


@pytest.mark.parametrize("family", ["pam", "sam", "sam-matched"])
@pytest.mark.parametrize("scale", AT_THE_START)
def test_activations_keep_their_rms_through_every_map_and_layer(family, scale):
    """At the start the projections neither shrink nor blow up what passes, whatever the depth."""
    config = at_the_start(family, scale)
    model = get_backend("mlx").build(config)
    ids = mx.array(np.random.default_rng(1).integers(config.vocab_size, size=(1, 64)))
    phases = model.phases(np.arange(64))

    def rms(z: mx.array) -> float:
        """Root of the mean |z|^2, a complex number's two planes together."""
        return (mx.square(z).mean() * model.field.planes).sqrt().item()

    z = model.embedding_norm(model.embedding(ids))
    assert rms(z) == pytest.approx(1.0, rel=0.02)
    for layer in model.layers:
        normed = layer.unit_norm(z)
        assert rms(layer.unit.up_gate(normed)) == pytest.approx(1.0, rel=0.15)
        assert rms(layer.memory.qkv(layer.memory_norm(z))) == pytest.approx(1.0, rel=0.15)
        before = rms(z)
        z, _ = layer(z, phases)
        assert before <= rms(z) < 2 * before
    assert rms(z) < 6


@pytest.mark.parametrize("scale", AT_THE_START)
def test_a_transformers_maps_keep_the_rms_and_its_branches_add_up_to_the_embedding(scale):
    """A branch's last map is smaller, so that 2L of them add up to about what they are added to."""
    config = at_the_start("transformer", scale)
    model = get_backend("mlx").build(config)
    ids = mx.array(np.random.default_rng(1).integers(config.vocab_size, size=(1, 64)))
    phases = model.phases(np.arange(64))
    embedded = 0.2 / config.dim**0.5
    gain = embedded / (2 * config.num_layers) ** 0.5

    def rms(z: mx.array) -> float:
        return mx.square(z).mean().sqrt().item()

    noise = mx.random.normal((64, config.num_heads, config.head_dim), key=mx.random.key(0))
    wide = mx.random.normal((64, config.hidden_dim), key=mx.random.key(1))
    z = model.embedding(ids)
    assert rms(z) == pytest.approx(embedded, rel=0.05)
    for layer in model.layers:
        assert rms(layer.attention.qkv(layer.attention_norm(z))) == pytest.approx(1.0, rel=0.15)
        assert rms(layer.unit.up_gate(layer.unit_norm(z))) == pytest.approx(1.0, rel=0.15)
        assert rms(layer.attention.out(noise)) == pytest.approx(gain, rel=0.15)
        assert rms(layer.unit.down(wide)) == pytest.approx(gain, rel=0.15)
        z, _ = layer(z, phases)
    assert embedded < rms(z) < 1.5 * embedded
