"""The real twins of the complex layers, on tensors `[..., d]`, for SAM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlx_pam.torch.ops.product import product


class RealLinear(nn.Module):
    """y = W x without bias: `[..., n]` -> `[..., m]`, or from and to `[..., groups, width]`."""

    def __init__(self, n: int, m: int, groups_in: int | None = None, groups_out: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(m, n))
        self.groups_in, self.groups_out = groups_in, groups_out

    def forward(self, x: Tensor) -> Tensor:
        if self.groups_in:
            x = x.flatten(-2)
        y = product(x, self.weight)
        return y.unflatten(-1, (self.groups_out, -1)) if self.groups_out > 1 else y


class RealNorm(nn.Module):
    """RMS norm, s x / RMS(x), in float32."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.scale.shape, self.scale.float(), self.eps)


class BiasedReLU(nn.Module):
    """ReLU(x + b), the real counterpart of modReLU."""

    def __init__(self, d: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bias)


class RealGatedUnit(nn.Module):
    """W_down(ReLU(W_up x + b) * sigmoid(W_g x))."""

    def __init__(self, d: int, hidden: int):
        super().__init__()
        self.up_gate = RealLinear(d, 2 * hidden)
        self.activation = BiasedReLU(hidden)
        self.down = RealLinear(hidden, d)

    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.up_gate(x).chunk(2, dim=-1)  # [..., ED]
        return self.down(self.activation(up) * torch.sigmoid(gate))

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """`active` of `models.diagnostics.activations`."""
        up, _ = self.up_gate(x).chunk(2, dim=-1)
        return {"active": (self.activation(up) > 0).float().mean()}


class SwiGLU(nn.Module):
    """W_down(W_up x * SiLU(W_g x)), both widening maps in one product."""

    def __init__(self, d: int, hidden: int):
        super().__init__()
        self.up_gate = RealLinear(d, 2 * hidden)
        self.down = RealLinear(hidden, d)

    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.up_gate(x).chunk(2, dim=-1)  # [..., ED]
        return self.down(up * F.silu(gate))

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """None: it closes no unit."""
        return {}


class RealEmbedding(nn.Module):
    """A real vector per token, and its inverse, the tied head."""

    def __init__(self, vocabulary: int, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary, d))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight).float()  # [B, T, D]

    def head(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x `[..., D]`, table `[V, D]`: logits = x table^T."""
        return x.to(self.weight.dtype), self.weight
