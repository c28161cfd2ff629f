"""Each kernel of a decoded token against the oracle's layers, and at its own edges.

Widths are chosen to be no multiples of what a lane, a simdgroup or its rows take.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import oracle
import pytest
from metal.one_token import random_weights

from mlx_pam.config import MemoryConfig, PAMConfig, SAMConfig
from mlx_pam.ops import metal
from mlx_pam.ops.metal import decode
from mlx_pam.phases import rotary_phases

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("machine")]

TOLERANCE = 1e-5
LAYER = "layers.0"

# D 13: lanes have 4 channels or 1; M 515: 2 rows a simdgroup, and 1 that is left
SIZES = {"dim": 13, "num_layers": 1, "num_heads": 3, "head_dim": 8, "vocab_size": 1030}
WIDE = {"dim": 172, "expand": 3, "num_layers": 1, "num_heads": 1, "head_dim": 24, "vocab_size": 9}


class Layer(NamedTuple):
    """A configuration, its weights as MLX has them, and the oracle's layers over the same."""

    config: MemoryConfig
    weights: dict[str, mx.array]
    exact: oracle._Model

    @classmethod
    def of(cls, config: MemoryConfig) -> Layer:
        weights = random_weights(config)
        exact = oracle._Model(config, weights)
        return cls(config, {name: mx.array(x) for name, x in weights.items()}, exact)

    def vectors(self, texts: int, width: int) -> mx.array:
        """Random ones, `[B, (2,) width]`."""
        random = np.random.default_rng([texts, width])
        shape = (texts, *self.config.planes, width)
        return mx.array(random.normal(size=shape).astype(np.float32))

    def joined(self, x: mx.array) -> np.ndarray:
        """As the oracle has it: complex128 `[B, 1, width]`, or float64."""
        x = np.array(x)
        return (oracle.join(x) if self.exact.is_complex else np.float64(x))[:, None]

    def split(self, x: np.ndarray) -> np.ndarray:
        """As the kernels have it, `[B, (2,) width]`."""
        return (oracle.split(x) if self.exact.is_complex else x)[:, 0]


fields = pytest.mark.parametrize("family", [PAMConfig, SAMConfig], ids=["complex", "real"])


@fields
@pytest.mark.parametrize("texts", [1, 3])
def test_an_embedding_is_a_row_of_the_table_normed(family, texts):
    layer = Layer.of(family(**SIZES))
    ids = np.array([[1029], [0], [500]])[:texts]
    table, scale = layer.weights["embedding.weight"], layer.weights["embedding_norm.scale"]
    found = decode.embedding(mx.array(ids, mx.int32), table, scale, layer.config.norm_eps)
    row = layer.exact.matrix("embedding.weight", planes=-2)[ids]
    expected = layer.split(layer.exact.norm("embedding_norm", row))
    assert oracle.relative_error(np.array(found), expected) < TOLERANCE


@pytest.mark.parametrize(
    ("config", "texts"),
    [
        (PAMConfig(**SIZES | {"expand": 40}), 2),
        (PAMConfig(**WIDE), 8),
        (SAMConfig(**SIZES | {"expand": 40}), 1),
        (SAMConfig(**SIZES | {"expand": 40}, gated_unit="swiglu"), 1),
    ],
    ids=["complex", "complex, eight texts", "ReLU", "SwiGLU"],
)
def test_a_unit_is_the_oracles_up_to_its_last_map(config, texts):
    layer = Layer.of(config)
    name, hidden = f"{LAYER}.unit", config.hidden_dim
    z = layer.vectors(texts, config.dim)
    bias = layer.weights.get(f"{name}.activation.bias")
    scale, weight = (
        layer.weights[f"{LAYER}.unit_norm.scale"],
        layer.weights[f"{name}.up_gate.weight"],
    )
    found = decode.unit(z, scale, weight, bias, config.norm_eps)
    identity = np.eye(hidden)
    if layer.exact.is_complex:
        identity = np.stack([identity, np.zeros_like(identity)])
    layer.exact.weights[f"{name}.down.weight"] = identity
    x = layer.exact.norm(f"{LAYER}.unit_norm", layer.joined(z))
    expected = layer.split(layer.exact.gated_unit(name, x))
    assert oracle.relative_error(np.array(found), expected) < TOLERANCE


@fields
def test_a_unit_of_nothing_is_nothing(family):
    layer = Layer.of(family(**SIZES | {"expand": 40}))
    name = f"{LAYER}.unit"
    bias = mx.abs(layer.weights[f"{name}.activation.bias"])
    scale, weight = (
        layer.weights[f"{LAYER}.unit_norm.scale"],
        layer.weights[f"{name}.up_gate.weight"],
    )
    z = mx.zeros((1, *layer.config.planes, 13))
    found = np.array(decode.unit(z, scale, weight, bias, 0.25))
    # a complex 0 has no phase to be given a size; a real one is moved by the bias
    expected = np.zeros_like(found) if family is PAMConfig else np.array(bias)[None] / 2
    np.testing.assert_array_equal(found, expected)


@fields
@pytest.mark.parametrize(
    ("texts", "m", "n", "residual"), [(1, 1026, 10, True), (3, 44, 131, False), (8, 9, 12, True)]
)
def test_a_product_is_a_map_and_what_it_adds_to(family, texts, m, n, residual):
    layer = Layer.of(family(**SIZES))
    x, base = layer.vectors(texts, n), layer.vectors(texts, m)
    random = np.random.default_rng(m)
    weight = random.normal(size=(*layer.config.planes, m, n)).astype(np.float32)
    alpha = mx.array(0.3)
    found = decode.product(x, mx.array(weight), *[alpha, base] * residual)
    expected = layer.joined(x) @ (oracle.join(weight, -3) if weight.ndim == 3 else weight).T
    expected = layer.split(layer.joined(base) + 0.3 * expected if residual else expected)
    assert oracle.relative_error(np.array(found), expected) < TOLERANCE


@fields
@pytest.mark.parametrize(("texts", "protect"), [(3, "head"), (1, "channel")])
def test_projections_are_q_k_v_and_the_logits_of_the_gates(family, texts, protect):
    layer = Layer.of(family(**SIZES, protect=protect))
    name, weights, config = f"{LAYER}.memory", layer.weights, layer.config
    z = layer.vectors(texts, config.dim)
    decay, gate = (
        (weights[f"{name}.{which}.weight"], weights[f"{name}.{which}.bias"])
        for which in ("decay", "protect")
    )
    scale = weights[f"{LAYER}.memory_norm.scale"]
    found = decode.projections(z, scale, weights[f"{name}.qkv.weight"], decay, gate, 1e-6)
    x = layer.exact.norm(f"{LAYER}.memory_norm", layer.joined(z))
    features = np.concatenate([x.real, x.imag], axis=-1) if layer.exact.is_complex else x
    expected = [
        layer.split(x @ layer.exact.matrix(f"{name}.qkv.weight").T),
        (features @ np.float64(decay[0]).T + np.float64(decay[1]))[:, 0],
        (np.abs(x) @ np.float64(gate[0]).T + np.float64(gate[1]))[:, 0],
    ]
    for one, other in zip(found, expected, strict=True):
        assert oracle.relative_error(np.array(one), other) < TOLERANCE


def gates(decay_logit: np.ndarray, gate_logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """gamma `[B, H]` and 1 - p `[B, H, 1 or d]` in float64, as eq. 5 has them."""
    gate_logit = gate_logit.reshape(*decay_logit.shape, -1)
    forget = np.exp(-np.logaddexp(0, np.float64(decay_logit)))[..., None]
    closed = np.exp(-np.logaddexp(0, -np.float64(gate_logit)))
    opened = np.exp(-np.logaddexp(0, np.float64(gate_logit)))
    return (forget * opened + closed).mean(axis=-1), opened


@fields
@pytest.mark.parametrize(
    ("d", "texts", "protect"),
    [
        (8, 1, "head"),
        (24, 3, "channel"),
        *(
            pytest.param(d, texts, protect, marks=pytest.mark.slow)
            for d in metal.WIDTHS
            for texts, protect in ((1, "channel"), (4, "head"))
        ),
    ],
)
def test_a_memory_turns_decays_writes_and_reads_as_the_oracle_does(family, d, texts, protect):
    layer = Layer.of(family(dim=8, num_layers=1, num_heads=2, head_dim=d, vocab_size=9))
    random = np.random.default_rng(d)
    qkv = layer.vectors(texts, 3 * 2 * d)
    decay_logit = random.normal(size=(texts, 2)).astype(np.float32)
    gate_logit = random.normal(size=(texts, 2 * (d if protect == "channel" else 1)))
    gate_logit = gate_logit.astype(np.float32)
    state = random.normal(size=(texts, 2, *layer.config.planes, d, d)).astype(np.float32)
    positions = 1000 * np.arange(1, texts + 1)
    is_complex = layer.exact.is_complex
    phases = rotary_phases(positions[:, None], d if is_complex else d // 2)
    ids = mx.array(np.full((texts, 1), 5), mx.int32)
    y, after = decode.memory(
        qkv, mx.array(decay_logit), mx.array(gate_logit), mx.array(phases), ids, None,
        mx.array(state),
    )  # fmt: skip

    q, k, v = np.moveaxis(layer.joined(qkv).reshape(texts, 1, 3, 2, d), 2, 0)  # [B, 1, H, d]
    turn = oracle.join(phases)[:, :, None]
    if is_complex:
        q, k = q * turn, k * turn
    else:
        pairs = ((x[..., : d // 2] + 1j * x[..., d // 2 :]) * turn for x in (q, k))
        q, k = (np.concatenate([z.real, z.imag], axis=-1) for z in pairs)
    gamma, opened = gates(decay_logit, gate_logit)
    rows = [q * d**-0.5, k, v * opened[:, None]]
    rows = [oracle.split(x) for x in rows] if is_complex else rows
    expected, last = oracle.retrieve(*rows, np.log(gamma)[:, None], state)
    expected = np.moveaxis(expected[:, 0], 1, -2).reshape(y.shape)  # heads side by side
    assert oracle.relative_error(np.array(y), expected) < TOLERANCE
    assert oracle.relative_error(np.array(after), last) < TOLERANCE


@pytest.mark.parametrize("protect", ["head", "channel"])
def test_a_decay_is_exact_to_the_last_bit_or_two_at_both_ends(protect):
    """What is lost of 1, down to what float32 can tell from nothing, and what is left above 0."""
    ends = np.float32([-60, -18, -16, -9, -4, -0.6, 0, 0.5, 3, 8, 20, 60])
    decay_logit, gate = (x.ravel()[None] for x in np.meshgrid(ends, ends))  # [1, H]
    heads, d = decay_logit.shape[1], 8
    gate_logit = gate if protect == "head" else np.repeat(gate, d, axis=1)
    _, after = decode.memory(
        mx.zeros((1, 3 * heads * d)), mx.array(decay_logit), mx.array(gate_logit),
        mx.zeros((1, 1, 2, d // 2)), mx.array([[5]], mx.int32), None, mx.ones((1, heads, d, d)),
    )  # fmt: skip
    gamma, _ = gates(decay_logit, gate_logit)
    found = np.float64(np.array(after))
    np.testing.assert_allclose(found, np.broadcast_to(gamma[..., None, None], found.shape), 2e-6)
    ulps = (found[..., 0, 0] - gamma)[gamma > 0.5] / 2.0**-24  # below 1, of 2^-24 each
    assert np.abs(ulps).max() < 1.1


def test_a_slow_decay_has_no_bias():
    """Over many entries the step errs as often up as down, with gamma between two float32."""
    loss, heads, d = 151.5 * 2.0**-24, 8, 32
    decay_logit = np.full((1, heads), np.log(loss / (1 - loss)), np.float32)
    state = np.random.default_rng(7).normal(size=(1, heads, d, d)).astype(np.float32)
    _, after = decode.memory(
        mx.zeros((1, 3 * heads * d)), mx.array(decay_logit), mx.full((1, heads), -60.0),
        mx.zeros((1, 1, 2, d // 2)), mx.array([[5]], mx.int32), None, mx.array(state),
    )  # fmt: skip
    ratio = np.array(after).astype(np.float64) / state
    assert ratio.mean() == pytest.approx(1 - loss, abs=3e-9)


@fields
@pytest.mark.parametrize("texts", [1, 8])
def test_logits_are_the_real_inner_products_of_the_normed_vector(family, texts):
    layer = Layer.of(family(**SIZES))
    z = layer.vectors(texts, 13)
    table, scale = layer.weights["embedding.weight"], layer.weights["head_norm.scale"]
    found = decode.logits(z, scale, table, layer.config.norm_eps)
    x = layer.exact.norm("head_norm", layer.joined(z))[:, 0]
    expected = (x @ layer.exact.matrix("embedding.weight", planes=-2).conj().T).real
    assert oracle.relative_error(np.array(found), expected) < TOLERANCE
