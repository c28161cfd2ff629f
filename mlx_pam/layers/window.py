"""Softmax attention over a window of tokens, which a block may have beside its memory.

B batch   T tokens   W the window   H heads   d head width; a complex array has an axis of 2 before
its last one.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.config import MemoryConfig
from mlx_pam.layers.field import Field
from mlx_pam.layers.recent import newest, text_numbers

Window = tuple[mx.array, mx.array, mx.array]
"""Keys and values of the last W - 1 tokens, `[B, W-1, H, (2,) d]`, and which of them are filled,
`[B, W-1]` of 1 and 0, all in float32."""

QUERIES = 256  # at once, so that scores need memory linear in T


class WindowAttention(nn.Module):
    """softmax(Re <k, q> / sqrt(d)) v over the last W tokens of the text."""

    arrays = 3  # of its state

    def __init__(self, config: MemoryConfig, field: Field):
        super().__init__()
        self.config, self.field = config, field
        width, heads = config.memory_dim, config.num_heads
        self.qkv = field.linear(config.dim, 3 * width, groups_out=3 * heads)
        self.out = field.linear(width, config.dim, groups_in=heads)

    def __call__(
        self,
        x: mx.array,
        phases: mx.array,
        state: Window | None = None,
        mask: mx.array | None = None,
        resets: mx.array | None = None,
    ) -> tuple[mx.array, Window]:
        """Attend from every token of x, `[B, T, (2,) D]`, to the window that ends at it.

        phases, mask, resets: as in `Memory`; state: what the piece before returned, or None.
        Returns the layer's output, like x, and the window after the last token.
        """
        batch, tokens, carried = *x.shape[:2], self.config.attention_window - 1
        q, k, v = mx.split(self.qkv(x), 3, axis=2)  # [B, T, H, (2,) d]
        if self.config.rotary:
            q, k = self.field.rotate(q, phases), self.field.rotate(k, phases)
        if state is None:
            empty = mx.zeros((batch, carried, *k.shape[2:]))
            state = empty, empty, mx.zeros((batch, carried))
        *before, filled = state
        k, v = (
            mx.concatenate([old.astype(new.dtype), new], axis=1)
            for old, new in zip(before, (k, v), strict=True)
        )  # [B, W-1+T, H, (2,) d]
        absent = mx.pad(filled == 0, [(0, 0), (0, tokens)])
        texts = mx.where(absent, -1, text_numbers(x, carried, resets))  # [B, W-1+T]

        y = self._attend(q, k, v, texts)  # [B, T, H, (2,) d]
        k, v, texts = (newest(array, carried, mask) for array in (k, v, texts))
        filled = (texts == texts[:, -1:]) & (texts >= 0)
        return self.out(y), tuple(array.astype(mx.float32) for array in (k, v, filled))

    def _attend(self, q: mx.array, k: mx.array, v: mx.array, texts: mx.array) -> mx.array:
        """A query sees those of the W tokens up to its own that are of its text."""
        window, outputs = self.config.attention_window, []
        shape = q.shape
        q, k, v = (x.reshape(*x.shape[:3], -1).swapaxes(1, 2) for x in (q, k, v))  # [B, H, T, 2d]
        for start in range(0, shape[1], QUERIES):
            stop = min(start + QUERIES, shape[1])
            seen = slice(start, stop + window - 1)  # the token of query t stands at t + W - 1
            ahead = mx.arange(stop - start + window - 1) - mx.arange(stop - start)[:, None]
            own = texts[:, start + window - 1 : stop + window - 1, None]  # [B, T', 1]
            visible = (ahead >= 0) & (ahead < window) & (own == texts[:, None, seen])
            outputs.append(
                mx.fast.scaled_dot_product_attention(
                    q[:, :, start:stop],
                    k[:, :, seen],
                    v[:, :, seen],
                    scale=self.config.head_dim**-0.5,
                    mask=visible[:, None],
                )
            )
        return mx.concatenate(outputs, axis=2).swapaxes(1, 2).reshape(shape)
