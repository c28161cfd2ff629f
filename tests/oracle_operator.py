"""What the operator computes, in complex128 NumPy, token by token, with nothing of ours imported.

    S_t = gamma_t S_{t-1} + v_t k_t^H        y_t = S_t q_t        gamma_t = exp(log_decay_t)

Arrays are those of the package: q, k, v, y [B, T, H, 2, d] with planes real and imaginary on axis
-2, or [B, T, H, d] in the real twin; log_decay [B, T, H]; state [B, H, 2, d, d] or [B, H, d, d],
value index first. Inside this file a complex array is one complex128 array [..., d].

The gradient of a real loss with respect to z = x + iy is dL/dx + i dL/dy, so that
dL = Re <gradient, dz>, and its planes are the gradients of the two real planes.
"""

from __future__ import annotations

from typing import NamedTuple

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
        y, state = recurrence(join(q), join(k), join(v), np.exp(_real(log_decay)), state)
        return split(y), split(state, axis=-3)
    state = None if state is None else _real(state)
    return recurrence(_real(q), _real(k), _real(v), np.exp(_real(log_decay)), state)


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


def recurrence(q: Array, k: Array, v: Array, gamma: Array, state: Array | None):
    """(y, state) of complex or real arrays [B, T, H, d], gamma [B, T, H], state [B, H, d, d]."""
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
