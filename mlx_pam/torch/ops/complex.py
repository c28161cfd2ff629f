"""Complex arithmetic on split-real tensors.

A complex tensor is one real tensor with its two planes on dimension -2: `[..., 2, d]`, plane 0 the
real part, plane 1 the imaginary part. The weight of a complex map is `[2, m, n]`, plane first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlx_pam.torch.ops.product import FEW_ROWS, product, real_linear

# |z|^2 up to here counts as 0: below it the slope of 1/|z| leaves float32's range.
TINY_SQUARE = 1e-24

# Channels from which a map on a CPU saves more by a product fewer than its additions cost.
THREE_PRODUCTS_FROM = 128


def planes(z: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part, each `[..., d]`."""
    return z[..., 0, :], z[..., 1, :]


def times_i(z: Tensor) -> Tensor:
    """i z, of shape `[..., 2, d]`."""
    re, im = planes(z)
    return torch.stack([-im, re], dim=-2)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b per element, of shape `[..., 2, d]`."""
    (a_re, a_im), (b_re, b_im) = planes(a), planes(b)
    return torch.stack([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], dim=-2)


def magnitude_and_inverse(z: Tensor, eps: float = 0.0) -> tuple[Tensor, Tensor]:
    """|z| and 1/sqrt(|z|^2 + eps^2), each `[..., d]`.

    Where |z| <= 1e-12, |z| is 0 and so is its gradient; with eps = 0 the inverse as well.
    """
    re, im = planes(z)
    square = re * re + im * im
    nonzero = square > TINY_SQUARE
    # the inner `where` keeps rsqrt away from 0, whose infinite slope times 0 would be NaN
    inverse = torch.where(nonzero, torch.rsqrt(torch.where(nonzero, square, 1.0)), 0.0)
    return square * inverse, torch.rsqrt(square + eps * eps) if eps else inverse


def mod_relu(z: Tensor, bias: Tensor) -> Tensor:
    """ReLU(|z| + b) z/|z|, with b `[d]`; 0 where z = 0. The phase is untouched."""
    magnitude, inverse = magnitude_and_inverse(z)
    gain = torch.relu(magnitude + bias) * inverse  # [..., d]
    return z * gain[..., None, :]


def rms_norm(z: Tensor, scale: Tensor, eps: float) -> Tensor:
    """s z / RMS(|z|), the mean over the d channels, with s `[d]`; the phase is untouched."""
    z = z.float()
    re, im = planes(z)
    inverse = torch.rsqrt((re * re + im * im).mean(dim=-1, keepdim=True) + eps)  # [..., 1]
    return z * (inverse * scale.float())[..., None, :]


def block_weight(weight: Tensor, groups_out: int = 1, groups_in: int = 1) -> Tensor:
    """The real matrix [[W_re, -W_im], [W_im, W_re]] of a complex map: `[2, m, n]` -> `[2m, 2n]`.

    Its rows are ordered (groups_out, 2, m/groups_out) and its columns (groups_in, 2, n/groups_in),
    so that what it reads and writes are the planes of each group, e.g. of each head.
    """
    _, m, n = weight.shape
    re, im = weight.view(2, groups_out, m // groups_out, groups_in, n // groups_in).unbind(0)
    to_re = torch.stack([re, -im], dim=3)  # [go, m/go, gi, 2, n/gi]
    to_im = torch.stack([im, re], dim=3)
    return torch.stack([to_re, to_im], dim=1).reshape(2 * m, 2 * n)


def linear(x: Tensor, weight: Tensor, groups_out: int = 1, groups_in: int = 1) -> Tensor:
    """y = W x: y_re = W_re x_re - W_im x_im, y_im = W_im x_re + W_re x_im.

    x: `[..., 2, n]`, or `[..., groups_in, 2, n/groups_in]` with several groups.
    weight: `[2, m, n]`.
    Returns `[..., 2, m]`, or `[..., groups_out, 2, m/groups_out]` with several groups.
    """
    _, m, n = weight.shape
    lead = x.shape[: -2 if groups_in == 1 else -3]
    shape_out = (*lead, 2, m) if groups_out == 1 else (*lead, groups_out, 2, m // groups_out)
    if x.numel() // n > FEW_ROWS:
        if _saves_a_product(weight):
            x = x.view(*lead, groups_in, 2, n // groups_in)
            return three_products(x, weight, groups_out).reshape(shape_out)
        flat = x.reshape(*lead, 2 * n)
        return real_linear(flat, block_weight(weight, groups_out, groups_in)).view(shape_out)
    # few rows read the stored planes and build no block: each weight once, for both planes of x
    x = x.view(*lead, groups_in, 2, n // groups_in).transpose(-3, -2).reshape(*lead, 2, n)
    by_re = product(x, weight[0])  # [..., 2, m]: W_re on both planes
    by_im = product(x, weight[1])
    y = by_re + times_i(by_im)
    y = y.view(*lead, 2, groups_out, m // groups_out).transpose(-3, -2)
    return y.reshape(shape_out)


def _saves_a_product(weight: Tensor) -> bool:
    """For a large map on a CPU, where compiled code fuses the sums; not measured elsewhere."""
    large = min(weight.shape[1:]) >= THREE_PRODUCTS_FROM
    return large and weight.device.type == "cpu" and torch.compiler.is_compiling()


def three_products(x: Tensor, weight: Tensor, groups_out: int = 1) -> Tensor:
    """y = W x by Gauss's scheme, and so are its gradients: three real products in place of four.

    y = A - B + i (C - A - B),  A = W_re x_re,  B = W_im x_im,  C = (W_re + W_im) (x_re + x_im).

    x: `[..., groups_in, 2, n/groups_in]`; weight: `[2, m, n]`.
    Returns `[..., groups_out, 2, m/groups_out]`.
    """
    x_re, x_im = (plane.flatten(-2) for plane in planes(x))  # [..., n]
    w_re, w_im = weight.unbind(0)
    a, b = real_linear(x_re, w_re), real_linear(x_im, w_im)
    c = real_linear(x_re + x_im, w_re + w_im)
    y = torch.stack([a - b, c - a - b], dim=-2)  # [..., 2, m]
    return y.unflatten(-1, (groups_out, -1)).transpose(-3, -2)
