"""The product with a weight, in the weight's type, which is the compute dtype."""

from __future__ import annotations

import mlx.core as mx


def product(x: mx.array, weight: mx.array) -> mx.array:
    """x W^T: `[..., n]`, `[m, n]` -> `[..., m]`, of the type of W whatever that of x."""
    return x.astype(weight.dtype) @ weight.T
