"""The transformer's layer: causal softmax attention over rotary pairs.

B batch   T tokens   C tokens that a cache has room for   N tokens of its longest text   D width
H heads   d head width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlx_pam.config import TransformerConfig
from mlx_pam.torch.layers.real import RealLinear


class Position(NamedTuple):
    """Where tokens stand in their texts."""

    rotation: Tensor
    """`[..., T, 2, d]`, see `rotate_pairs`."""
    places: Tensor
    """Their places, counted from 0: `[..., T]`."""
    first: int
    """The least of the places; kept on the host, so that no device has to be waited for."""
    last: int
    """The greatest of the places."""


@dataclass(frozen=True, eq=False)
class Cache:
    """The keys and values of earlier tokens, and where those of the next ones belong."""

    keys: Tensor
    """`[B, H, N, d]`, a view of the filled part: the token at place m stands in slot m."""
    values: Tensor
    """Like keys."""
    places: Tensor
    """Slots of the next tokens, `[B or 1, T]`."""
    visible: Tensor | None
    """Added to scores, `[B or 1, 1, T, N]`: 0 where a token sees a slot, else -inf. None: all 0."""

    @torch.compiler.disable  # compiled, the write would copy the whole cache at every token
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v in place, and attend to what is there: each `[B, H, T, d]`; y, like q."""
        slots = self.places[:, None, :, None].expand_as(k)
        self.keys.scatter_(2, slots, k)
        self.values.scatter_(2, slots, v)
        return F.scaled_dot_product_attention(q, self.keys, self.values, self.visible)


def rotate_pairs(x: Tensor, rotation: Tensor) -> Tensor:
    """Channels j and j + d/2 turn by one angle: x * (cos, cos) + swapped x * (-sin, sin).

    x: `[B, T, H, d]`; rotation: `[..., T, 2, d]`, the two rows (cos, cos) and (-sin, sin).
    """
    cosine, sine = rotation[..., None, 0, :], rotation[..., None, 1, :]  # [..., T, 1, d]
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine).to(x.dtype)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over a sequence from its beginning, each `[B, H, T, d]`."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v over the tokens up to each one's own; q, k, v from one product.

    In three calls: `project`, then `causal_attention` or `Cache.attend`, which is never compiled,
    then `merge`.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = RealLinear(config.dim, 3 * config.memory_dim, groups_out=3 * config.num_heads)
        self.out = RealLinear(config.memory_dim, config.dim, groups_in=config.num_heads)

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k, rotated, and v of x, `[B, T, D]`: each `[B, H, T, d]`."""
        qkv = self.qkv(x)  # [B, T, 3H, d]
        qk = rotate_pairs(qkv[:, :, : 2 * self.num_heads], rotation)
        q, k = qk.transpose(1, 2).chunk(2, dim=1)  # [B, H, T, d]
        return q, k, qkv[:, :, 2 * self.num_heads :].transpose(1, 2)

    def merge(self, y: Tensor) -> Tensor:
        """The layer's output, `[B, T, D]`, from what every head has read, `[B, H, T, d]`."""
        return self.out(y.transpose(1, 2))
