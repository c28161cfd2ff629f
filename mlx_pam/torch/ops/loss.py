"""Cross-entropy behind a linear head, without the logits of a whole batch in memory.

N tokens   E width of what the head reads   V vocabulary   R rows of a slice
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mlx_pam.torch.ops.fusing import fused

# Logits alive at once: as many as stay in a CPU's cache; a GPU wants larger products.
SLICE_NUMBERS = {"cpu": 1 << 23}
SLICE_NUMBERS_GPU = 1 << 26


@torch.no_grad()
def token_losses(x: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(x table^T)[target] without a gradient: `[N, E]`, `[V, E]`, `[N]` -> `[N]`."""
    slices = _slices(x, table)
    return torch.cat([_softmax(_logits(x[rows], table), targets[rows])[0] for rows in slices])


def summed_loss(x: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    """sum_n of `token_losses`, differentiable in x and table.

    The gradients are made slice by slice together with the loss, so no logits are kept or computed
    twice: with e = exp(logits - max) and s = sum e, dx = (e table) / s - table[target] and
    dtable = e^T (x / s) - (x added up by target).
    """
    return _SummedLoss.apply(x, table, targets)


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, table, targets):
        total = x.new_zeros((), dtype=torch.float32)
        dx = torch.empty_like(x)
        # operands as their products are fastest: float32 by rows, halves by columns
        by_rows = x.dtype == torch.float32
        read = table if by_rows else table.T.contiguous().T  # [V, E]
        dtable = torch.zeros_like(read, dtype=torch.float32)
        for rows in _slices(x, table):
            losses, shares, sums = _softmax(_logits(x[rows], table), targets[rows])
            total += losses.sum()
            dx[rows] = (shares @ read) / sums - table[targets[rows]]
            weighted = (x[rows] / sums).to(x.dtype)
            if by_rows:
                dtable.addmm_(shares.T, weighted)
            else:
                _add_up(dtable.T, weighted.T @ shares)
        dtable.index_add_(0, targets, x.float(), alpha=-1)
        ctx.save_for_backward(dx, dtable)
        ctx.dtype = table.dtype
        return total

    @staticmethod
    def backward(ctx, scale):
        dx, dtable = ctx.saved_tensors
        return (dx * scale).to(dx.dtype), (dtable * scale).to(ctx.dtype), None


def _slices(x: Tensor, table: Tensor) -> Iterator[slice]:
    """Equal ones where N allows it, since each length is a shape to compile for.

    Never fewer rows than the width E: each slice also passes over dtable, which is V x E.
    """
    numbers = SLICE_NUMBERS.get(x.device.type, SLICE_NUMBERS_GPU)
    most = max(numbers // table.shape[0], table.shape[1])
    count = -(-x.shape[0] // most)
    rows = next((x.shape[0] // n for n in range(count, 2 * count) if x.shape[0] % n == 0), most)
    return (slice(start, start + rows) for start in range(0, x.shape[0], rows))


def _logits(x: Tensor, table: Tensor) -> Tensor:
    """x table^T: `[R, E]`, `[V, E]` -> `[R, V]`, in memory as its product is fastest."""
    return (table @ x.T).T if x.dtype == torch.float32 else x @ table.T


@fused
def _softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits `[R, V]`: losses `[R]`, exp(logits - max) in their type, and its sums `[R, 1]`."""
    highest = logits.amax(dim=-1, keepdim=True).float()
    hit = logits.gather(1, targets[:, None]).float()
    shares = torch.exp(logits.float() - highest)
    sums = shares.sum(dim=-1, keepdim=True)
    return (torch.log(sums) + highest - hit)[:, 0], shares.to(logits.dtype), sums


@fused
def _add_up(total: Tensor, part: Tensor) -> None:
    total += part.float()
