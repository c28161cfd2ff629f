"""The product with a weight, which decoding reads once for all of its few rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mlx_pam.torch.ops.fusing import fused

# Up to so many rows, a product is bound by the bytes of its weight; with more, by arithmetic.
FEW_ROWS = 8


def real_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T: `[..., n]`, `[m, n]` -> `[..., m]`, in autocast's type, or else that of W."""
    return F.linear(x if torch.is_autocast_enabled(x.device.type) else x.to(weight.dtype), weight)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`real_linear`, fast for few rows too.

    Of few rows, compiled code takes each row of W through all rows of x before it reads the next:
    about twice as fast on a CPU as the BLAS, which is made for larger products.
    """
    rows = x.numel() // x.shape[-1]
    if rows > FEW_ROWS or not torch.compiler.is_compiling():
        return real_linear(x, weight)
    few = x.reshape(rows, -1).to(weight.dtype)
    y = (weight[:, None, :] * few).sum(dim=-1)  # [m, rows]
    return y.T.reshape(*x.shape[:-1], weight.shape[0])


fused_product = fused(product)
