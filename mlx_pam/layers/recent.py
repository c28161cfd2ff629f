"""The newest tokens of a text, carried from piece to piece: what a layer looks back at.

B batch   T tokens of the piece   R tokens carried, zeros before the beginning of a text

A reset token begins another text in its row: texts are counted from the piece's beginning, and what
is carried is of text 0.
"""

from __future__ import annotations

import mlx.core as mx


def text_numbers(x: mx.array, carried: int, resets: mx.array | None) -> mx.array:
    """Which text of its row each token is of, `[B, R + T]`; x: `[B, T, ...]`, resets: `[B, T]`."""
    if resets is None:
        return mx.zeros((x.shape[0], carried + x.shape[1]), mx.int32)
    return mx.pad(mx.cumsum(resets.astype(mx.int32), axis=1), [(0, 0), (carried, 0)])


def newest(rows: mx.array, carried: int, mask: mx.array | None) -> mx.array:
    """The last R of what is carried and the tokens of the piece, `[B, R + T, ...]`, of each row.

    mask: `[B, T]` or None, False where a token is padding, which comes last in its row.
    """
    if mask is None:
        return rows[:, rows.shape[1] - carried :]
    places = mask.sum(axis=1, keepdims=True) + mx.arange(carried)  # [B, R]
    return mx.take_along_axis(rows, over(places, rows), axis=1)


def over(x: mx.array, rows: mx.array) -> mx.array:
    """`[B, R]` with axes of 1 for the rest of rows, `[B, R, ...]`."""
    return mx.expand_dims(x, tuple(range(2, rows.ndim)))
