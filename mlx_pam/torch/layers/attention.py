"""The transformer's layer: causal softmax attention over rotary pairs.

B batch   T tokens   C tokens of a cache, which has room for more than it holds   D width   H heads
d head width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlx_pam.config import TransformerConfig
from mlx_pam.torch.layers.real import RealLinear

Position = tuple[Tensor, Tensor]
"""Rotation `[..., T, 2, d]`, see `rotate_pairs`, and the tokens' places in the text, `[..., T]`."""
Cache = tuple[Tensor, Tensor]
"""Keys and values, each `[B, H, C, d]`: the token at place m of its row stands in slot m."""


def rotate_pairs(x: Tensor, rotation: Tensor) -> Tensor:
    """Channels j and j + d/2 turn by one angle: x * (cos, cos) + swapped x * (-sin, sin).

    x: `[B, T, H, d]`; rotation: `[..., T, 2, d]`, the two rows (cos, cos) and (-sin, sin).
    """
    cosine, sine = rotation[..., None, 0, :], rotation[..., None, 1, :]  # [..., T, 1, d]
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine).to(x.dtype)


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v over the tokens up to each one's own; q, k, v from one product."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = RealLinear(config.dim, 3 * config.memory_dim, groups_out=3 * config.num_heads)
        self.out = RealLinear(config.memory_dim, config.dim, groups_in=config.num_heads)

    def forward(
        self,
        x: Tensor,
        position: Position,
        cache: Cache | None = None,
        visible: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Attend from every token of x, `[B, T, D]`, to the cache and to x.

        visible: added to the scores, `[B or 1, 1, T, C]`: 0 where a token sees a slot, else -inf.
        Returns the layer's output, like x, and the cache, in which the tokens of x now stand;
        without a cache to begin with, x is the beginning of the text, and C is T.
        """
        rotation, places = position
        qkv = self.qkv(x)  # [B, T, 3H, d]
        qk = rotate_pairs(qkv[:, :, : 2 * self.num_heads], rotation)
        q, k = qk.transpose(1, 2).chunk(2, dim=1)  # [B, H, T, d]
        v = qkv[:, :, 2 * self.num_heads :].transpose(1, 2)
        if cache is not None:
            slots = places.reshape(-1, 1, x.shape[1], 1).expand_as(k)
            k, v = (old.scatter_(2, slots, new) for old, new in zip(cache, (k, v), strict=True))
        y = F.scaled_dot_product_attention(q, k, v, visible, is_causal=cache is None)
        return self.out(y.transpose(1, 2)), (k, v)
