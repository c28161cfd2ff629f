"""Complex layers on planar arrays `[..., 2, d]`.

A layer is built with zeros or ones of the right shape; `mlx_pam.parameters` draws the values of a
new model.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.ops import complex as cx
from mlx_pam.ops.rows import lookup

SMALL_GATE = 0.1  # of the RMS of |g|: below it a gate counts as small in the diagnostics


class ComplexLinear(nn.Module):
    """y = W x without bias: `[..., 2, n]` -> `[..., 2, m]`; groups as in `ops.complex.linear`."""

    def __init__(self, n: int, m: int, groups_in: int | None = None, groups_out: int = 1):
        super().__init__()
        self.weight = mx.zeros((2, m, n))
        self.groups_in, self.groups_out = groups_in, groups_out

    def __call__(self, x: mx.array) -> mx.array:
        if self.groups_in == 1:
            x = x.squeeze(-3)  # `linear` knows no axis of one group
        return cx.linear(x, self.weight, self.groups_out, self.groups_in or 1)


class ModReLU(nn.Module):
    """ReLU(|z| + b) z/|z| with b learned per channel."""

    def __init__(self, d: int):
        super().__init__()
        self.bias = mx.zeros((d,))

    def __call__(self, z: mx.array) -> mx.array:
        return cx.mod_relu(z, self.bias)


class ComplexNorm(nn.Module):
    """s z / RMS(|z|) with s learned per channel; the phase is untouched."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.scale = mx.ones((d,))
        self.eps = eps

    def __call__(self, z: mx.array) -> mx.array:
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

    def __call__(self, z: mx.array) -> mx.array:
        both = self.up_gate(z).astype(mx.float32)  # [..., 2 maps, 2, ED]
        up, gate = both[..., 0, :, :], both[..., 1, :, :]
        magnitude, inverse = cx.magnitude_and_inverse(gate, self.phase_eps)
        rotation = gate * (mx.sigmoid(magnitude) * inverse)[..., None, :]  # u sigmoid(|g|)
        return self.down(cx.multiply(rotation, self.activation(up)))

    def statistics(self, z: mx.array) -> dict[str, mx.array]:
        """`active` and `small_gate` of `models.diagnostics.activations`."""
        both = self.up_gate(z).astype(mx.float32)  # [..., 2 maps, 2, ED]
        magnitude, _ = cx.magnitude_and_inverse(both)
        up, gate = magnitude[..., 0, :], magnitude[..., 1, :]
        small = gate < SMALL_GATE * mx.sqrt(gate.square().mean())
        return {
            "active": (up + self.activation.bias > 0).astype(mx.float32).mean(),
            "small_gate": small.astype(mx.float32).mean(),
        }


class ComplexEmbedding(nn.Module):
    """A complex vector per token, and its inverse, the tied head.

    Vectors are float32: a gradient summed in bfloat16 over a frequent token would saturate.
    """

    def __init__(self, vocabulary: int, d: int):
        super().__init__()
        self.weight = mx.zeros((vocabulary, 2, d))

    def __call__(self, ids: mx.array, deterministic: bool = False) -> mx.array:
        return lookup(self.weight, ids, deterministic).astype(mx.float32)  # [B, T, 2, D]

    def head(self, z: mx.array) -> tuple[mx.array, mx.array]:
        """x `[..., 2D]`, table `[V, 2D]`: x table^T = z_re E_re^T + z_im E_im^T, the logits."""
        return mx.flatten(z, -2).astype(self.weight.dtype), mx.flatten(self.weight, 1)
