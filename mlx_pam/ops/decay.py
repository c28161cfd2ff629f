"""The decay gamma and the protect gate p, in logs and exact at both ends (eq. 5)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

NEAR_ONE = -0.25  # log gamma from which gamma is stepped by its difference from 1


def log_decay(decay_logit: mx.array, gate_logit: mx.array) -> mx.array:
    """log gamma, gamma = e^{-dt} (1 - p) + p, dt = softplus(decay_logit), p = sigmoid(gate_logit).

    decay_logit: `[B, T, H]`; gate_logit: `[B, T, H]`, or `[B, T, H, d]` for a gate per channel, of
    which gamma takes the mean over d. Returns float32 `[B, T, H]`, <= 0; no epsilon, no clip.
    """
    dt = nn.softplus(decay_logit.astype(mx.float32))
    gate = gate_logit.astype(mx.float32)
    if gate.ndim > dt.ndim:
        write = mx.sigmoid(-gate).mean(axis=-1)
        d = gate.shape[-1]
        far = mx.logsumexp(_far(dt[..., None], gate), axis=-1) - mx.log(mx.array(d, mx.float32))
    else:
        write = mx.sigmoid(-gate)
        far = _far(dt, gate)
    loss = write * mx.expm1(-dt)  # gamma - 1, in (-1, 0]
    # near 1 log1p keeps the small difference; far from 1 it loses gamma itself, and there its
    # argument is held where it is finite only so that the branch not taken has a finite slope
    near = mx.log1p(mx.maximum(loss, -0.75))
    return mx.where(loss > -0.5, near, far)


def _far(dt: mx.array, gate: mx.array) -> mx.array:
    return mx.logaddexp(-dt + nn.log_sigmoid(-gate), nn.log_sigmoid(gate))


def write_strength(gate_logit: mx.array) -> mx.array:
    """1 - p, which scales the value that is written: `[B, T, H]` -> the same, float32."""
    return mx.sigmoid(-gate_logit.astype(mx.float32))


def step_factors(log_decay: mx.array) -> tuple[mx.array, mx.array]:
    """a and b, float32, of gamma S = a S + b S: (1, gamma - 1) near 1, (0, gamma) elsewhere.

    gamma rounded to float32 is off by up to 2^-25, the same way at every step; its difference from
    1 is not. log_decay: float32, any shape, <= 0; a and b are like it.
    """
    near = log_decay > NEAR_ONE
    change = mx.where(near, mx.expm1(log_decay), mx.exp(log_decay))
    return near.astype(mx.float32), change
