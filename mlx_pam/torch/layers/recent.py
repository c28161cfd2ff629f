"""The newest tokens of a text, carried from piece to piece: what a layer looks back at.

B batch   T tokens of the piece   R tokens carried, zeros before the beginning of a text

A reset token begins another text in its row: texts are counted from the piece's beginning, and what
is carried is of text 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def text_numbers(x: Tensor, carried: int, resets: Tensor | None) -> Tensor:
    """Which text of its row each token is of, `[B, R + T]`; x: `[B, T, ...]`, resets: `[B, T]`."""
    if resets is None:
        return x.new_zeros((x.shape[0], carried + x.shape[1]), dtype=torch.long)
    return F.pad(resets.cumsum(dim=1), (carried, 0))


def newest(rows: Tensor, carried: int, mask: Tensor | None) -> Tensor:
    """The last R of what is carried and the tokens of the piece, `[B, R + T, ...]`, of each row.

    mask: `[B, T]` or None, False where a token is padding, which comes last in its row.
    """
    if mask is None:
        return rows[:, rows.shape[1] - carried :]
    places = mask.sum(dim=1, keepdim=True) + torch.arange(carried, device=rows.device)  # [B, R]
    return torch.take_along_dim(rows, over(places, rows), dim=1)


def over(x: Tensor, rows: Tensor) -> Tensor:
    """`[B, R]` with dimensions of 1 for the rest of rows, `[B, R, ...]`."""
    return x.reshape(*x.shape, *[1] * (rows.ndim - 2))
