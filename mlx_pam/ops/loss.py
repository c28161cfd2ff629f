"""Cross-entropy behind a linear head, without the logits of a whole batch in memory.

N tokens   E width of what the head reads   V vocabulary   R rows of a slice
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from mlx_pam.ops.rows import add_up

SLICE_NUMBERS = 1 << 24  # logits alive at once: 64 MB in float32


def token_losses(x: mx.array, table: mx.array, targets: mx.array) -> mx.array:
    """-log softmax(x table^T)[target]: `[N, E]`, `[V, E]`, `[N]` -> float32 `[N]`."""
    return mx.concatenate(
        [_slice_losses(x[rows], table, targets[rows])[0] for rows in _slices(x, table)]
    )


def summed_loss(
    x: mx.array, table: mx.array, targets: mx.array, deterministic: bool = False
) -> tuple[mx.array, mx.array, mx.array]:
    """sum_n of `token_losses`, and its gradients with respect to x and table.

    The gradients are made slice by slice together with the loss, so no logits are kept or computed
    twice: with e = exp(logits - max) and s = sum e, dx = (e table) / s - table[target] and
    dtable = e^T (x / s) - (x added up by target). Only the first output is to be differentiated.
    deterministic: x is added up in a fixed order, see `mlx_pam.ops.rows`.
    """
    return (_deterministic_loss if deterministic else _plain_loss)(x, table, targets)


def _loss_and_gradients(
    x: mx.array, table: mx.array, targets: mx.array, deterministic: bool
) -> tuple[mx.array, mx.array, mx.array]:
    total, dx = mx.zeros(()), []
    dtable = -add_up(x, targets, table.shape[0], deterministic)
    for rows in _slices(x, table):
        # one slice after the other, or the logits of all would be alive at once
        part = mx.depends(x[rows], [total, dtable, *dx[-1:]])
        losses, shares, sums = _slice_losses(part, table, targets[rows])
        total = total + losses.sum()
        shares = shares.astype(x.dtype)  # [R, V]
        dx.append((shares @ table) / sums - table[targets[rows]])
        dtable = dtable + (shares.T @ (part / sums).astype(x.dtype)).astype(mx.float32)
    return total, mx.concatenate(dx), dtable


@mx.custom_function
def _plain_loss(x, table, targets):
    return _loss_and_gradients(x, table, targets, deterministic=False)


@mx.custom_function
def _deterministic_loss(x, table, targets):
    return _loss_and_gradients(x, table, targets, deterministic=True)


def _loss_vjp(primals, cotangents, outputs):
    x, table, targets = primals
    scale = cotangents[0]
    _, dx, dtable = outputs
    return (
        (dx * scale).astype(x.dtype),
        (dtable * scale).astype(table.dtype),
        mx.zeros_like(targets),
    )


_plain_loss.vjp(_loss_vjp)
_deterministic_loss.vjp(_loss_vjp)


def _slices(x: mx.array, table: mx.array) -> Iterator[slice]:
    rows = max(1, SLICE_NUMBERS // table.shape[0])
    return (slice(start, start + rows) for start in range(0, x.shape[0], rows))


def _slice_losses(
    x: mx.array, table: mx.array, targets: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Losses `[R]`, exp(logits - max) `[R, V]` and its sums `[R, 1]`, in float32."""
    logits = (x @ table.T).astype(mx.float32)
    highest = mx.stop_gradient(logits.max(axis=-1, keepdims=True))
    shares = mx.exp(logits - highest)
    sums = shares.sum(axis=-1, keepdims=True)
    losses = mx.log(sums) + highest - mx.take_along_axis(logits, targets[:, None], axis=-1)
    return losses[:, 0], shares, sums
