"""The decay gamma and the protect gate p, in logs and exact at both ends (eq. 5)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NEAR_ONE = -0.25  # log gamma from which gamma is stepped by its difference from 1


def log_decay(decay_logit: Tensor, gate_logit: Tensor) -> Tensor:
    """log gamma, gamma = e^{-dt} (1 - p) + p, dt = softplus(decay_logit), p = sigmoid(gate_logit).

    decay_logit: `[B, T, H]`; gate_logit: `[B, T, H]`, or `[B, T, H, d]` for a gate per channel, of
    which gamma takes the mean over d. Returns float32 `[B, T, H]`, <= 0; no epsilon, no clip.
    """
    dt = softplus(decay_logit.float())
    gate = gate_logit.float()
    if gate.ndim > dt.ndim:
        write = torch.sigmoid(-gate).mean(dim=-1)
        far = torch.logsumexp(_far(dt[..., None], gate), dim=-1) - math.log(gate.shape[-1])
    else:
        write = torch.sigmoid(-gate)
        far = _far(dt, gate)
    loss = write * torch.expm1(-dt)  # gamma - 1, in (-1, 0]
    # near 1 log1p keeps the small difference; far from 1 it loses gamma itself, and there its
    # argument is held where it is finite only so that the branch not taken has a finite slope
    near = torch.log1p(loss.clamp(min=-0.75))
    return torch.where(loss > -0.5, near, far)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), smooth at every x."""
    return -F.logsigmoid(-x)


def _far(dt: Tensor, gate: Tensor) -> Tensor:
    return torch.logaddexp(-dt + F.logsigmoid(-gate), F.logsigmoid(gate))


def write_strength(gate_logit: Tensor) -> Tensor:
    """1 - p, which scales the value that is written: `[B, T, H]` -> the same, float32."""
    return torch.sigmoid(-gate_logit.float())


def step_factors(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """a and b, float32, of gamma S = a S + b S: (1, gamma - 1) near 1, (0, gamma) elsewhere.

    gamma rounded to float32 is off by up to 2^-25, the same way at every step; its difference from
    1 is not. log_decay: float32, any shape, <= 0; a and b are like it.
    """
    near = log_decay > NEAR_ONE
    change = torch.where(near, torch.expm1(log_decay), torch.exp(log_decay))
    return near.float(), change
