"""The transformer's layer: causal softmax attention over rotary pairs.

B batch   T tokens   C tokens of a cache, which has room for more than it holds   D width   H heads
d head width
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.config import TransformerConfig
from mlx_pam.layers.real import RealLinear

Position = tuple[mx.array, mx.array]
"""Rotation `[..., T, 2, d]`, see `rotate_pairs`, and the tokens' places in the text, `[..., T]`."""
Cache = tuple[mx.array, mx.array]
"""Keys and values, each `[B, H, C, d]`: the token at place m of its row stands in slot m."""


def rotate_pairs(x: mx.array, rotation: mx.array) -> mx.array:
    """Channels j and j + d/2 turn by one angle: x * (cos, cos) + swapped x * (-sin, sin).

    x: `[B, T, H, d]`; rotation: `[..., T, 2, d]`, the two rows (cos, cos) and (-sin, sin).
    """
    cosine, sine = rotation[..., None, 0, :], rotation[..., None, 1, :]  # [..., T, 1, d]
    return (x * cosine + mx.roll(x, x.shape[-1] // 2, axis=-1) * sine).astype(x.dtype)


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v over the tokens up to each one's own; q, k, v from one product."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.scale = config.head_dim**-0.5
        self.qkv = RealLinear(config.dim, 3 * config.memory_dim, groups_out=3 * config.num_heads)
        self.out = RealLinear(config.memory_dim, config.dim, groups_in=config.num_heads)

    def __call__(
        self,
        x: mx.array,
        position: Position,
        cache: Cache | None = None,
        visible: mx.array | str = "causal",
    ) -> tuple[mx.array, Cache]:
        """Attend from every token of x, `[B, T, D]`, to the cache and to x.

        visible: the slots of the cache that a token sees, `[B or 1, 1, T, C]`.
        Returns the layer's output, like x, and the cache with the tokens of x in it; without a
        cache to begin with, x is the beginning of the text, and C is T.
        """
        rotation, places = position
        qkv = self.qkv(x)  # [B, T, 3H, d]
        qk = rotate_pairs(qkv[:, :, : 2 * self.num_heads], rotation)
        q, k = mx.split(qk.swapaxes(1, 2), 2, axis=1)  # [B, H, T, d]
        v = qkv[:, :, 2 * self.num_heads :].swapaxes(1, 2)
        if cache is not None:
            slots = places.reshape(-1, 1, x.shape[1], 1)
            k, v = (
                mx.put_along_axis(old, slots, new, axis=2)
                for old, new in zip(cache, (k, v), strict=True)
            )
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=visible)
        return self.out(y.swapaxes(1, 2)), (k, v)
