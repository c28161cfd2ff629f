"""What the models compute, in complex128 NumPy, token by token, with nothing of ours imported.

    S_t = gamma_t S_{t-1} + v_t k_t^H        y_t = S_t q_t        gamma_t = exp(log_decay_t)

Arrays are those of the package: q, k, v, y [B, T, H, 2, d] with planes real and imaginary on axis
-2, or [B, T, H, d] in the real twin; log_decay [B, T, H]; state [B, H, 2, d, d] or [B, H, d, d],
value index first. Inside this file a complex array is one complex128 array [..., d].

The gradient of a real loss with respect to z = x + iy is dL/dx + i dL/dy, so that
dL = Re <gradient, dz>, and its planes are the gradients of the two real planes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray


class Gradients(NamedTuple):
    """Gradients of the inputs of `retrieve`, each in its input's layout."""

    q: Array
    k: Array
    v: Array
    log_decay: Array
    state: Array


def join(planes: Array, axis: int = -2) -> Array:
    """[..., 2, d] -> complex128 [..., d]."""
    real, imaginary = np.moveaxis(np.asarray(planes, np.float64), axis, 0)
    return real + 1j * imaginary


def split(z: Array, axis: int = -2) -> Array:
    """complex128 [..., d] -> float64 [..., 2, d]."""
    return np.stack([z.real, z.imag], axis=axis)


def retrieve(q: Array, k: Array, v: Array, log_decay: Array, state: Array | None = None):
    """(y, state): the two lines at the top of this file, for every token in turn."""
    if np.ndim(q) == 5:
        state = None if state is None else join(state, axis=-3)
        y, state = _retrieve(join(q), join(k), join(v), np.exp(_real(log_decay)), state)
        return split(y), split(state, axis=-3)
    state = None if state is None else _real(state)
    return _retrieve(_real(q), _real(k), _real(v), np.exp(_real(log_decay)), state)


def retrieve_gradients(
    q: Array, k: Array, v: Array, log_decay: Array, state: Array | None, dy: Array, dstate: Array
) -> Gradients:
    """Gradients of Re<dy, y> + Re<dstate, final state> by the adjoint recursion, last token first.

    G_t = dL/dS_t = gamma_{t+1} G_{t+1} + dy_t q_t^H       (G_T also holds dstate)
    dq_t = S_t^H dy_t     dk_t = G_t^H v_t     dv_t = G_t k_t
    dlog_decay_t = gamma_t Re<G_t, S_{t-1}>     dS_0 = gamma_1 G_1
    """
    gamma = np.exp(_real(log_decay))
    if np.ndim(q) == 5:
        state = None if state is None else join(state, axis=-3)
        dq, dk, dv, dlog_decay, dstate = _retrieve_gradients(
            join(q), join(k), join(v), gamma, state, join(dy), join(dstate, axis=-3)
        )
        return Gradients(split(dq), split(dk), split(dv), dlog_decay, split(dstate, axis=-3))
    state = None if state is None else _real(state)
    q, k, v, dy, dstate = map(_real, (q, k, v, dy, dstate))
    return Gradients(*_retrieve_gradients(q, k, v, gamma, state, dy, dstate))


def _real(a: Array) -> Array:
    return np.asarray(a, np.float64)


def _states(k: Array, v: Array, gamma: Array, state: Array | None) -> list[Array]:
    """S_0 .. S_T, each [B, H, d, d]; 0 times a state is 0, whatever the state."""
    batch, time, heads, dim = k.shape
    if state is None:
        state = np.zeros((batch, heads, dim, dim), k.dtype)
    states = [state]
    for t in range(time):
        write = np.einsum("bhv,bhk->bhvk", v[:, t], k[:, t].conj())
        states.append(gamma[:, t, :, None, None] * states[-1] + write)
    return states


def _retrieve(q: Array, k: Array, v: Array, gamma: Array, state: Array | None):
    states = _states(k, v, gamma, state)
    y = [np.einsum("bhvk,bhk->bhv", s, q[:, t]) for t, s in enumerate(states[1:])]
    return np.stack(y, axis=1), states[-1]


def _retrieve_gradients(
    q: Array, k: Array, v: Array, gamma: Array, state: Array | None, dy: Array, dstate: Array
):
    states = _states(k, v, gamma, state)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dlog_decay = np.zeros_like(gamma)
    adjoint = dstate  # G_{T+1} with gamma_{T+1} = 1
    for t in reversed(range(q.shape[1])):
        adjoint = adjoint + np.einsum("bhv,bhk->bhvk", dy[:, t], q[:, t].conj())
        dq[:, t] = np.einsum("bhvk,bhv->bhk", states[t + 1].conj(), dy[:, t])
        dk[:, t] = np.einsum("bhvk,bhv->bhk", adjoint.conj(), v[:, t])
        dv[:, t] = np.einsum("bhvk,bhk->bhv", adjoint, k[:, t])
        inner = np.einsum("bhvk,bhvk->bh", adjoint.conj(), states[t]).real
        dlog_decay[:, t] = gamma[:, t] * inner
        adjoint = gamma[:, t, :, None, None] * adjoint
    return dq, dk, dv, dlog_decay, adjoint


def relative_error(found: Array, expected: Array) -> float:
    """Largest difference over the largest expected entry; infinite if one is not finite."""
    found, expected = _real(found), _real(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if found.size == 0:
        return 0.0
    if not np.isfinite(found).all():
        return float("inf")
    largest = np.abs(expected).max()
    return float(np.abs(found - expected).max() / (largest if largest > 0 else 1.0))


# The whole model --------------------------------------------------------------------------------


def model_logits(config: Any, weights: dict[str, Array], ids: Array) -> Array:
    """[B, T] ids -> [B, T, V] float64 logits of a model, from the checkpoint's arrays by name.

    `config` is anything with the attributes of a model's configuration. PAM and SAM are one text
    here: complex arithmetic in PAM, real in SAM.
    """
    if config.model_type == "transformer":
        return _transformer_logits(config, weights, ids)
    is_complex = config.model_type == "pam"
    model = _Model(config, weights, is_complex)
    ids = np.asarray(ids)

    embedding = model.matrix("embedding.weight", planes=-2)  # [V, D]
    z = model.norm("embedding_norm", embedding[ids])  # [B, T, D]
    for i in range(config.num_layers):
        name = f"layers.{i}"
        z = z + model.scalar(f"{name}.alpha_cgu") * model.gated_unit(
            f"{name}.unit", model.norm(f"{name}.unit_norm", z)
        )
        z = z + model.scalar(f"{name}.alpha_pam") * model.memory(
            f"{name}.memory", model.norm(f"{name}.memory_norm", z), ids == config.reset_token
        )
    z = model.norm("head_norm", z @ model.matrix("head.weight").T)
    return (z @ embedding.conj().T).real


def _transformer_logits(config: Any, weights: dict[str, Array], ids: Array) -> Array:
    model = _Model(config, weights, is_complex=False)
    embedding = model.matrix("embedding.weight")  # [V, D]
    z = embedding[np.asarray(ids)]  # [B, T, D]
    for i in range(config.num_layers):
        name = f"layers.{i}"
        z = z + model.attention(f"{name}.attention", model.norm(f"{name}.attention_norm", z))
        x = model.norm(f"{name}.unit_norm", z)
        up, gate = np.split(x @ model.matrix(f"{name}.unit.up_gate.weight").T, 2, axis=-1)
        z = z + (up * gate * _sigmoid(gate)) @ model.matrix(f"{name}.unit.down.weight").T
    return model.norm("head_norm", z) @ embedding.T


class _Model:
    """The layers, each a few lines of arithmetic over named weights."""

    def __init__(self, config: Any, weights: dict[str, Array], is_complex: bool):
        self.config, self.weights, self.is_complex = config, weights, is_complex

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
            hidden = _phase(gate) * up * _sigmoid(np.abs(gate))
        elif self.config.gated_unit == "relu":
            bias = self.vector(f"{name}.activation.bias")
            hidden = np.maximum(up + bias, 0) * _sigmoid(gate)
        else:
            hidden = up * gate * _sigmoid(gate)
        return hidden @ self.matrix(f"{name}.down.weight").T

    def memory(self, name: str, x: Array, resets: Array) -> Array:
        batch, time, _ = x.shape
        heads, dim = self.config.num_heads, self.config.head_dim
        qkv = x @ self.matrix(f"{name}.qkv.weight").T
        q, k, v = np.moveaxis(qkv.reshape(batch, time, 3, heads, dim), 2, 0)  # [B, T, H, d]
        q, k = self.rotate(q) * dim**-0.5, self.rotate(k)
        gamma, keep = self.gates(name, x)  # [B, T, H], [B, T, H, 1 or d]
        gamma = np.where(resets[..., None], 0.0, gamma)
        y, _ = _retrieve(q, k, keep * v, gamma, None)
        return y.reshape(batch, time, heads * dim) @ self.matrix(f"{name}.out.weight").T

    def attention(self, name: str, x: Array) -> Array:
        batch, time, _ = x.shape
        heads, dim = self.config.num_heads, self.config.head_dim
        qkv = x @ self.matrix(f"{name}.qkv.weight").T
        q, k, v = np.moveaxis(qkv.reshape(batch, time, 3, heads, dim), 2, 0)  # [B, T, H, d]
        q, k = self.rotate(q), self.rotate(k)
        y = np.zeros_like(v)
        for b, t, h in np.ndindex(batch, time, heads):
            weights = np.exp(k[b, : t + 1, h] @ q[b, t, h] / dim**0.5)
            y[b, t, h] = weights @ v[b, : t + 1, h] / weights.sum()
        return y.reshape(batch, time, heads * dim) @ self.matrix(f"{name}.out.weight").T

    def gates(self, name: str, x: Array) -> tuple[Array, Array]:
        """gamma = e^{-dt} (1 - p) + p, and 1 - p, which scales what is written."""
        features = np.concatenate([x.real, x.imag], axis=-1) if self.is_complex else x
        decay = self.real_matrix(f"{name}.decay.weight"), self.vector(f"{name}.decay.bias")
        protect = self.real_matrix(f"{name}.protect.weight"), self.vector(f"{name}.protect.bias")
        dt = np.logaddexp(0, features @ decay[0].T + decay[1])[..., None]  # softplus, [B, T, H, 1]
        p = _sigmoid(np.abs(x) @ protect[0].T + protect[1])
        p = p.reshape(*dt.shape[:-1], -1)  # [B, T, H, 1] by head, [B, T, H, d] by channel
        gamma = np.exp(-dt) * (1 - p) + p
        return gamma.mean(axis=-1), 1 - p

    def rotate(self, x: Array) -> Array:
        """Turn channel k of the token at position m by m theta_k; x is [B, T, H, d]."""
        if self.is_complex:
            return x * _rotation(x.shape[1], x.shape[-1], self.config.rotary_base)
        first, second = np.split(x, 2, axis=-1)
        turned = first + 1j * second
        turned = turned * _rotation(x.shape[1], turned.shape[-1], self.config.rotary_base)
        return np.concatenate([turned.real, turned.imag], axis=-1)


def _rotation(time: int, pairs: int, base: float) -> Array:
    """e^{i m theta_k}, theta_k = base^(-k / pairs): [T, 1, pairs]."""
    theta = base ** (-np.arange(pairs) / pairs)
    return np.exp(1j * np.arange(time)[:, None, None] * theta)


def _phase(z: Array) -> Array:
    modulus = np.abs(z)
    return np.where(modulus > 0, z / np.where(modulus > 0, modulus, 1.0), 0.0)


def _sigmoid(a: Array) -> Array:
    return np.exp(-np.logaddexp(0, -a))
