"""What the models compute, in complex128 NumPy, token by token, with nothing of ours imported.

The operator is in `oracle_operator`; its names can be had here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from oracle_operator import (
    Array,
    Gradients,
    join,
    recurrence,
    relative_error,
    retrieve,
    retrieve_gradients,
    split,
)

__all__ = [
    "Gradients",
    "block_statistics",
    "join",
    "model_logits",
    "relative_error",
    "residual_stream",
    "retrieve",
    "retrieve_gradients",
    "split",
]


def model_logits(config: Any, weights: dict[str, Array], ids: Array) -> Array:
    """[B, T] ids -> [B, T, V] float64 logits of a model, from the checkpoint's arrays by name.

    `config` is anything with the attributes of a model's configuration. PAM and SAM are one text
    here: complex arithmetic in PAM, real in SAM.
    """
    *_, (_, _, _, z) = residual_stream(config, weights, ids)
    model = _Model(config, weights)
    if config.model_type != "transformer":
        z = z @ model.matrix("head.weight").T
    return (model.norm("head_norm", z) @ model.embedding.conj().T).real


def residual_stream(
    config: Any, weights: dict[str, Array], ids: Array
) -> Iterator[tuple[int, str, Array, Array]]:
    """(block, part, x, z) of each part in turn: what it reads, and the stream after it, [B, T, D].

    A part is unit, memory or attention.
    """
    model, ids = _Model(config, weights), np.asarray(ids)
    if config.model_type == "transformer":
        yield from _transformer_stream(model, ids)
        return
    begins = _beginnings(ids, config.reset_token)
    z = model.norm("embedding_norm", model.embedding[ids])  # [B, T, D]
    for block, part in _parts(config):
        name = f"layers.{block}"
        x = model.norm(f"{name}.{part}_norm", z)
        if part == "unit":
            z = z + model.scalar(f"{name}.alpha_cgu") * model.gated_unit(f"{name}.unit", x)
        elif part == "memory":
            z = z + model.scalar(f"{name}.alpha_pam") * model.memory(f"{name}.memory", x, begins)
        else:
            y = model.attention(f"{name}.attention", x, config.attention_window, begins)
            z = z + model.scalar(f"{name}.alpha_attention") * y
        yield block, part, x, z


def block_statistics(config: Any, weights: dict[str, Array], ids: Array) -> dict[str, float]:
    """`layers.{i}.{rms, active, small_gate, decay, protect}`: means over texts `[B, T]`."""
    model, found = _Model(config, weights), {}
    for block, part, x, z in residual_stream(config, weights, ids):
        name = f"layers.{block}"
        bias = weights.get(f"{name}.unit.activation.bias")
        if part == "unit" and bias is not None:
            up, gate = np.split(x @ model.matrix(f"{name}.unit.up_gate.weight").T, 2, axis=-1)
            found[f"{name}.active"] = np.mean((np.abs(up) if model.is_complex else up) + bias > 0)
            if model.is_complex:
                rms = np.sqrt(np.mean(np.abs(gate) ** 2))
                found[f"{name}.small_gate"] = np.mean(np.abs(gate) < rms / 10)
        if part == "memory":
            gamma, keep = model.gates(f"{name}.memory", x)
            found[f"{name}.decay"] = np.mean(gamma)
            if config.protect != "none":
                found[f"{name}.protect"] = np.mean(1 - keep)
        found[f"{name}.rms"] = np.sqrt(np.mean(np.abs(z) ** 2))
    return found


def _parts(config: Any) -> Iterator[tuple[int, str]]:
    """What is added to the residual stream, in order, and the block that it is of."""
    layers, every = config.num_layers, config.attention_every
    attends = [bool(every) and i % every == 0 for i in range(1, layers + 1)]
    if config.order == "sequential":
        yield from ((i, "unit") for i in range(layers))
    for i in range(layers):
        block = i
        if config.order == "interleaved":
            yield i, "unit"
        else:
            block += layers
        yield block, "memory"
        if attends[i]:
            yield block, "attention"


def _beginnings(ids: Array, reset_token: int | None) -> Array:
    """The place at which the text of each token begins, [B, T]."""
    begins = np.zeros(ids.shape, int)
    for b, t in np.ndindex(ids.shape):
        begins[b, t] = t if ids[b, t] == reset_token else begins[b, t - 1] if t else 0
    return begins


def _transformer_stream(model: _Model, ids: Array) -> Iterator[tuple[int, str, Array, Array]]:
    z = model.embedding[ids]  # [B, T, D]
    for i in range(model.config.num_layers):
        name = f"layers.{i}"
        x = model.norm(f"{name}.attention_norm", z)
        z = z + model.attention(f"{name}.attention", x)
        yield i, "attention", x, z
        x = model.norm(f"{name}.unit_norm", z)
        up, gate = np.split(x @ model.matrix(f"{name}.unit.up_gate.weight").T, 2, axis=-1)
        z = z + (up * gate * _sigmoid(gate)) @ model.matrix(f"{name}.unit.down.weight").T
        yield i, "unit", x, z


class _Model:
    """The layers, each a few lines of arithmetic over named weights."""

    def __init__(self, config: Any, weights: dict[str, Array]):
        self.config, self.weights = config, weights
        self.is_complex = config.model_type == "pam"

    @property
    def embedding(self) -> Array:
        return self.matrix("embedding.weight", planes=-2)  # [V, D]

    def scalar(self, name: str) -> Array:
        return np.asarray(self.weights[name], np.float64)

    vector = real_matrix = scalar

    def matrix(self, name: str, planes: int = -3) -> Array:
        weight = self.scalar(name)
        return join(weight, axis=planes) if self.is_complex else weight

    def norm(self, name: str, z: Array) -> Array:
        mean_square = np.mean(np.abs(z) ** 2, axis=-1, keepdims=True)
        return self.vector(f"{name}.scale") * z / np.sqrt(mean_square + self.config.norm_eps)

    def gated_unit(self, name: str, z: Array) -> Array:
        up, gate = np.split(z @ self.matrix(f"{name}.up_gate.weight").T, 2, axis=-1)
        if self.is_complex:
            bias = self.vector(f"{name}.activation.bias")
            up = np.maximum(np.abs(up) + bias, 0) * _phase(up)
            hidden = _phase(gate, self.config.phase_eps) * up * _sigmoid(np.abs(gate))
        elif self.config.gated_unit == "relu":
            bias = self.vector(f"{name}.activation.bias")
            hidden = np.maximum(up + bias, 0) * _sigmoid(gate)
        else:
            hidden = up * gate * _sigmoid(gate)
        return hidden @ self.matrix(f"{name}.down.weight").T

    def memory(self, name: str, x: Array, begins: Array) -> Array:
        c = self.config
        q, k, v = self.projected(name, x)
        if c.conv_width > 1:
            taps = self.matrix(f"{name}.convolution.taps", planes=-2).reshape(
                c.conv_width, 3, c.num_heads, c.head_dim
            )
            q, k, v = (_convolution(z, taps[:, i], begins) for i, z in enumerate((q, k, v)))
        if c.qk_norm == "phase":
            q, k = _phase(q), _phase(k)
        elif c.qk_norm == "head":
            q, k = _unit_vectors(q, c.norm_eps), _unit_vectors(k, c.norm_eps)
        if c.rotary:
            q, k = self.rotate(q), self.rotate(k)
        scale = c.head_dim**-0.5
        if c.query_scale is not None:
            scale = self.vector(f"{name}.query_scale")[:, None]  # [H, 1]
        gamma, keep = self.gates(name, x)  # [B, T, H], [B, T, H, 1 or d]
        gamma = np.where((begins == np.arange(x.shape[1]))[..., None], 0.0, gamma)
        y, _ = recurrence(scale * q, k, keep * v, gamma, None)
        return self.out(name, y)

    def attention(
        self, name: str, x: Array, window: int | None = None, begins: Array | None = None
    ) -> Array:
        """softmax(Re <k, q> / sqrt(d)) v over the last tokens of the text, or all of them."""
        q, k, v = self.projected(name, x)
        if getattr(self.config, "rotary", True):
            q, k = self.rotate(q), self.rotate(k)
        y = np.zeros_like(v)
        for b, t, h in np.ndindex(*v.shape[:3]):
            first = 0 if window is None else max(begins[b, t], t + 1 - window)
            scores = (k[b, first : t + 1, h].conj() @ q[b, t, h]).real / self.config.head_dim**0.5
            weights = np.exp(scores)
            y[b, t, h] = weights @ v[b, first : t + 1, h] / weights.sum()
        return self.out(name, y)

    def projected(self, name: str, x: Array) -> Array:
        """q, k and v, each [B, T, H, d]."""
        heads, dim = self.config.num_heads, self.config.head_dim
        qkv = x @ self.matrix(f"{name}.qkv.weight").T
        return np.moveaxis(qkv.reshape(*x.shape[:2], 3, heads, dim), 2, 0)

    def out(self, name: str, y: Array) -> Array:
        return y.reshape(*y.shape[:2], -1) @ self.matrix(f"{name}.out.weight").T

    def gates(self, name: str, x: Array) -> tuple[Array, Array]:
        """gamma = e^{-dt} (1 - p) + p, and 1 - p, which scales what is written."""
        features = np.concatenate([x.real, x.imag], axis=-1) if self.is_complex else x
        shape = (*x.shape[:2], self.config.num_heads, 1)
        if self.config.fixed_decay is None:
            dt = np.logaddexp(0, self.affine(f"{name}.decay", features))  # softplus
            kept = np.exp(-dt).reshape(shape)
        else:
            kept = np.full(shape, self.config.fixed_decay)
        if self.config.protect == "none":
            return kept[..., 0], np.ones(shape)
        p = _sigmoid(self.affine(f"{name}.protect", np.abs(x)))
        p = p.reshape(*shape[:3], -1)  # [B, T, H, 1] by head, [B, T, H, d] by channel
        gamma = kept * (1 - p) + p
        return gamma.mean(axis=-1), 1 - p

    def affine(self, name: str, features: Array) -> Array:
        return features @ self.real_matrix(f"{name}.weight").T + self.vector(f"{name}.bias")

    def rotate(self, x: Array) -> Array:
        """Turn channel k of the token at position m by m theta_k; x is [B, T, H, d]."""
        if self.is_complex:
            return x * _rotation(x.shape[1], x.shape[-1], self.config.rotary_base)
        first, second = np.split(x, 2, axis=-1)
        turned = first + 1j * second
        turned = turned * _rotation(x.shape[1], turned.shape[-1], self.config.rotary_base)
        return np.concatenate([turned.real, turned.imag], axis=-1)


def _convolution(x: Array, taps: Array, begins: Array) -> Array:
    """y_t = sum_j taps_j x_{t-j} over tokens of t's own text; x [B, T, H, d], taps [w, H, d]."""
    y = np.zeros_like(x)
    for b, t in np.ndindex(begins.shape):
        for j in range(min(len(taps), t - begins[b, t] + 1)):
            y[b, t] += taps[j] * x[b, t - j]
    return y


def _rotation(time: int, pairs: int, base: float) -> Array:
    """e^{i m theta_k}, theta_k = base^(-k / pairs): [T, 1, pairs]."""
    theta = base ** (-np.arange(pairs) / pairs)
    return np.exp(1j * np.arange(time)[:, None, None] * theta)


def _phase(z: Array, eps: float = 0.0) -> Array:
    modulus = np.sqrt(np.abs(z) ** 2 + eps**2)
    return np.where(modulus > 0, z / np.where(modulus > 0, modulus, 1.0), 0.0)


def _unit_vectors(z: Array, eps: float) -> Array:
    return z / np.sqrt(np.sum(np.abs(z) ** 2, axis=-1, keepdims=True) + z.shape[-1] * eps)


def _sigmoid(a: Array) -> Array:
    return np.exp(-np.logaddexp(0, -a))
