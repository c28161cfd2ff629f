"""The real twins of the complex layers, on arrays `[..., d]`, for SAM."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.ops.product import product
from mlx_pam.ops.rows import lookup


class RealLinear(nn.Module):
    """y = W x without bias: `[..., n]` -> `[..., m]`, or from and to `[..., groups, width]`."""

    def __init__(self, n: int, m: int, groups_in: int | None = None, groups_out: int = 1):
        super().__init__()
        self.weight = mx.zeros((m, n))
        self.groups_in, self.groups_out = groups_in, groups_out

    def __call__(self, x: mx.array) -> mx.array:
        if self.groups_in:
            x = mx.flatten(x, -2)
        y = product(x, self.weight)
        return mx.unflatten(y, -1, (self.groups_out, -1)) if self.groups_out > 1 else y


class RealNorm(nn.Module):
    """RMS norm, s x / RMS(x), in float32."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.scale = mx.ones((d,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        x, scale = x.astype(mx.float32), self.scale.astype(mx.float32)
        return mx.fast.rms_norm(x, scale, self.eps)


class BiasedReLU(nn.Module):
    """ReLU(x + b), the real counterpart of modReLU."""

    def __init__(self, d: int):
        super().__init__()
        self.bias = mx.zeros((d,))

    def __call__(self, x: mx.array) -> mx.array:
        return mx.maximum(x + self.bias, 0)


class RealGatedUnit(nn.Module):
    """W_down(ReLU(W_up x + b) * sigmoid(W_g x))."""

    def __init__(self, d: int, hidden: int):
        super().__init__()
        self.up_gate = RealLinear(d, 2 * hidden)
        self.activation = BiasedReLU(hidden)
        self.down = RealLinear(hidden, d)

    def __call__(self, x: mx.array) -> mx.array:
        up, gate = mx.split(self.up_gate(x), 2, axis=-1)  # [..., ED]
        return self.down(self.activation(up) * mx.sigmoid(gate))

    def statistics(self, x: mx.array) -> dict[str, mx.array]:
        """`active` of `models.diagnostics.activations`."""
        up, _ = mx.split(self.up_gate(x), 2, axis=-1)
        return {"active": (self.activation(up) > 0).astype(mx.float32).mean()}


class SwiGLU(nn.Module):
    """W_down(W_up x * SiLU(W_g x)), both widening maps in one product."""

    def __init__(self, d: int, hidden: int):
        super().__init__()
        self.up_gate = RealLinear(d, 2 * hidden)
        self.down = RealLinear(hidden, d)

    def __call__(self, x: mx.array) -> mx.array:
        up, gate = mx.split(self.up_gate(x), 2, axis=-1)  # [..., ED]
        return self.down(up * nn.silu(gate))

    def statistics(self, x: mx.array) -> dict[str, mx.array]:
        """None: it closes no unit."""
        return {}


class RealEmbedding(nn.Module):
    """A real vector per token, and its inverse, the tied head.

    Vectors are float32: a gradient summed in bfloat16 over a frequent token would saturate.
    """

    def __init__(self, vocabulary: int, d: int):
        super().__init__()
        self.weight = mx.zeros((vocabulary, d))

    def __call__(self, ids: mx.array, deterministic: bool = False) -> mx.array:
        return lookup(self.weight, ids, deterministic).astype(mx.float32)  # [B, T, D]

    def head(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """x `[..., D]`, table `[V, D]`: logits = x table^T."""
        return x.astype(self.weight.dtype), self.weight
