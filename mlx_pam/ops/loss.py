"""Cross-entropy behind a linear head, without the logits of a whole batch in memory.

N tokens   E width of what the head reads   V vocabulary   R rows of a slice
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

SLICE_NUMBERS = 1 << 24  # logits alive at once: 64 MB in float32


def token_losses(x: mx.array, table: mx.array, targets: mx.array) -> mx.array:
    """-log softmax(x table^T)[target]: x `[N, E]`, table `[V, E]`, targets `[N]` -> float32 `[N]`."""
    losses = []
    for rows in _slices(x, table):
        losses.append(_slice_losses(x[rows] @ table.T, targets[rows])[0])
    return mx.concatenate(losses)


@mx.custom_function
def summed_loss(x: mx.array, table: mx.array, targets: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """sum_n of `token_losses`, and its gradients with respect to x and table.

    Gradients are made slice by slice together with the loss (dlogits = softmax - one-hot), so no logits are
    kept or computed twice. Only the first output is to be differentiated.
    """
    total, dtable, dx = mx.zeros(()), mx.zeros(table.shape, mx.float32), []
    for rows in _slices(x, table):
        logits = x[rows] @ table.T  # [R, V]
        losses, log_sum = _slice_losses(logits, targets[rows])
        total = total + losses.sum()
        dlogits = mx.exp(logits.astype(mx.float32) - log_sum)
        hit = targets[rows][:, None] == mx.arange(table.shape[0])
        dlogits = mx.where(hit, dlogits - 1, dlogits).astype(x.dtype)
        dx.append(dlogits @ table)
        dtable = dtable + (dlogits.T @ x[rows]).astype(mx.float32)
    return total, mx.concatenate(dx), dtable


@summed_loss.vjp
def _summed_loss_vjp(primals, cotangents, outputs):
    x, table, targets = primals
    scale = cotangents[0]
    _, dx, dtable = outputs
    return (dx * scale).astype(x.dtype), (dtable * scale).astype(table.dtype), mx.zeros_like(targets)


def _slices(x: mx.array, table: mx.array) -> Iterator[slice]:
    rows = max(1, SLICE_NUMBERS // table.shape[0])
    return (slice(start, start + rows) for start in range(0, x.shape[0], rows))


def _slice_losses(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    logits = logits.astype(mx.float32)
    log_sum = mx.logsumexp(logits, axis=-1, keepdims=True)  # [R, 1]
    return (log_sum - mx.take_along_axis(logits, targets[:, None], axis=-1))[:, 0], log_sum
