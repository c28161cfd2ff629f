"""A causal convolution over the last few tokens, in each channel by itself.

B batch   T tokens   w taps   H heads   d head width; a complex tensor has a dimension of 2 before
its last one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mlx_pam.config import MemoryConfig
from mlx_pam.torch.layers.field import Field
from mlx_pam.torch.layers.recent import newest, over, text_numbers


class Convolution(nn.Module):
    """y_t = sum_{j<w} c_j x_{t-j}; tokens before the beginning of a text count as zeros."""

    def __init__(self, config: MemoryConfig, field: Field):
        super().__init__()
        planes = (2,) if field.planes == 2 else ()
        shape = (config.conv_width, 3 * config.num_heads, *planes, config.head_dim)
        self.field = field
        self.taps = nn.Parameter(torch.zeros(shape))

    def forward(
        self,
        x: Tensor,
        recent: Tensor | None = None,
        mask: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """y, like x, `[B, T, 3H, (2,) d]`, and the last w - 1 tokens of x, in float32.

        recent: the w - 1 tokens before x, or None at the beginning of a text.
        mask, resets: as in `Memory`.
        """
        tokens, carried = x.shape[1], self.taps.shape[0] - 1
        if recent is None:
            recent = x.new_zeros((x.shape[0], carried, *x.shape[2:]))
        rows = torch.cat([recent.to(x.dtype), x], dim=1)  # [B, w-1+T, 3H, (2,) d]
        texts = text_numbers(x, carried, resets)  # [B, w-1+T]
        y = self.field.multiply(x, self.taps[0])
        for j in range(1, carried + 1):
            back = slice(carried - j, carried - j + tokens)
            past = rows[:, back]
            if resets is not None:
                past = torch.where(over(texts[:, back] == texts[:, carried:], past), past, 0.0)
            y = y + self.field.multiply(past, self.taps[j])
        kept = newest(rows, carried, mask)
        if resets is not None:
            texts = newest(texts, carried, mask)
            kept = torch.where(over(texts == texts[:, -1:], kept), kept, 0.0)
        return y.to(x.dtype), kept.float()
