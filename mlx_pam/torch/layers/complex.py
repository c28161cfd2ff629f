"""Complex layers on planar tensors `[..., 2, d]`.

A layer is built with zeros or ones of the right shape; `mlx_pam.parameters` draws the values of a
new model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlx_pam.torch.ops import complex as cx

SMALL_GATE = 0.1  # of the RMS of |g|: below it a gate counts as small in the diagnostics


class ComplexLinear(nn.Module):
    """y = W x without bias: `[..., 2, n]` -> `[..., 2, m]`; groups as in `ops.complex.linear`."""

    def __init__(self, n: int, m: int, groups_in: int | None = None, groups_out: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, m, n))
        self.groups_in, self.groups_out = groups_in, groups_out

    def forward(self, x: Tensor) -> Tensor:
        if self.groups_in == 1:
            x = x.squeeze(-3)  # `linear` knows no axis of one group
        return cx.linear(x, self.weight, self.groups_out, self.groups_in or 1)


class ModReLU(nn.Module):
    """ReLU(|z| + b) z/|z| with b learned per channel."""

    def __init__(self, d: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, z: Tensor) -> Tensor:
        return cx.mod_relu(z, self.bias)


class ComplexNorm(nn.Module):
    """s z / RMS(|z|) with s learned per channel; the phase is untouched."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, z: Tensor) -> Tensor:
        return cx.rms_norm(z, self.scale, self.eps)


class ComplexGatedUnit(nn.Module):
    """W_down(u * modReLU(W_up z) * sigmoid(|g|)), g = W_g z, u = g/|g|   (eq. 1).

    With phase_eps > 0 the gate's phase is smooth at 0: u = g / sqrt(|g|^2 + phase_eps^2).
    """

    def __init__(self, d: int, hidden: int, phase_eps: float = 0.0):
        super().__init__()
        self.phase_eps = phase_eps
        self.up_gate = ComplexLinear(d, 2 * hidden, groups_out=2)
        self.activation = ModReLU(hidden)
        self.down = ComplexLinear(hidden, d)

    def forward(self, z: Tensor) -> Tensor:
        up, gate = self.up_gate(z).float().unbind(-3)  # [..., 2, ED] each
        magnitude, inverse = cx.magnitude_and_inverse(gate, self.phase_eps)
        rotation = gate * (torch.sigmoid(magnitude) * inverse)[..., None, :]  # u sigmoid(|g|)
        return self.down(cx.multiply(rotation, self.activation(up)))

    def statistics(self, z: Tensor) -> dict[str, Tensor]:
        """`active` and `small_gate` of `models.diagnostics.activations`."""
        both = self.up_gate(z).float()  # [..., 2 maps, 2, ED]
        up, gate = cx.magnitude_and_inverse(both)[0].unbind(-2)
        small = gate < SMALL_GATE * gate.square().mean().sqrt()
        return {
            "active": (up + self.activation.bias > 0).float().mean(),
            "small_gate": small.float().mean(),
        }


class ComplexEmbedding(nn.Module):
    """A complex vector per token, and its inverse, the tied head."""

    def __init__(self, vocabulary: int, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary, 2, d))

    def forward(self, ids: Tensor) -> Tensor:
        rows = F.embedding(ids, self.weight.flatten(1))
        return rows.float().unflatten(-1, (2, -1))  # [B, T, 2, D]

    def head(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """x `[..., 2D]`, table `[V, 2D]`: x table^T = z_re E_re^T + z_im E_im^T, the logits."""
        return z.flatten(-2).to(self.weight.dtype), self.weight.flatten(1)
