"""Complex arithmetic on split-real arrays.

A complex array is one real array with its two planes on axis -2: `[..., 2, d]`, plane 0 the real
part, plane 1 the imaginary part. The weight of a complex map is `[2, m, n]`, plane first.
"""

from __future__ import annotations

import mlx.core as mx

from mlx_pam.ops.product import product

# Up to so many rows, a product reads the stored planes instead of building the block weight:
# decoding is bound by the bytes of the weights, training by the number of products.
FEW_ROWS = 8

# |z|^2 up to here counts as 0: below it the slope of 1/|z| leaves float32's range.
TINY_SQUARE = 1e-24


def planes(z: mx.array) -> tuple[mx.array, mx.array]:
    """Real and imaginary part, each `[..., d]`."""
    return z[..., 0, :], z[..., 1, :]


def times_i(z: mx.array) -> mx.array:
    """i z, of shape `[..., 2, d]`."""
    re, im = planes(z)
    return mx.stack([-im, re], axis=-2)


def multiply(a: mx.array, b: mx.array) -> mx.array:
    """a b per element, of shape `[..., 2, d]`."""
    (a_re, a_im), (b_re, b_im) = planes(a), planes(b)
    return mx.stack([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], axis=-2)


def magnitude_and_inverse(z: mx.array, eps: float = 0.0) -> tuple[mx.array, mx.array]:
    """|z| and 1/sqrt(|z|^2 + eps^2), each `[..., d]`.

    Where |z| <= 1e-12, |z| is 0 and so is its gradient; with eps = 0 the inverse as well.
    """
    re, im = planes(z)
    square = re * re + im * im
    nonzero = square > TINY_SQUARE
    # the inner `where` keeps rsqrt away from 0, whose infinite slope times 0 would be NaN
    inverse = mx.where(nonzero, mx.rsqrt(mx.where(nonzero, square, 1)), 0)
    return square * inverse, mx.rsqrt(square + eps * eps) if eps else inverse


def mod_relu(z: mx.array, bias: mx.array) -> mx.array:
    """ReLU(|z| + b) z/|z|, with b `[d]`; 0 where z = 0. The phase is untouched."""
    magnitude, inverse = magnitude_and_inverse(z)
    gain = mx.maximum(magnitude + bias, 0) * inverse  # [..., d]
    return z * gain[..., None, :]


def rms_norm(z: mx.array, scale: mx.array, eps: float) -> mx.array:
    """s z / RMS(|z|), the mean over the d channels, with s `[d]`; the phase is untouched.

    RMS(|z|)^2 = mean(re^2 + im^2) is twice the mean over the 2d real numbers, hence MLX's fused
    real norm serves with s/sqrt(2) and eps/2. Returns float32.
    """
    flat = mx.flatten(z, -2).astype(mx.float32)  # [..., 2d]
    weight = mx.concatenate([scale, scale]).astype(mx.float32) * 0.5**0.5
    return mx.fast.rms_norm(flat, weight, eps / 2).reshape(z.shape)


def block_weight(weight: mx.array, groups_out: int = 1, groups_in: int = 1) -> mx.array:
    """The real matrix [[W_re, -W_im], [W_im, W_re]] of a complex map: `[2, m, n]` -> `[2m, 2n]`.

    Its rows are ordered (groups_out, 2, m/groups_out) and its columns (groups_in, 2, n/groups_in),
    so that what it reads and writes are the planes of each group, e.g. of each head.
    """
    _, m, n = weight.shape
    planes_of = weight.reshape(2, groups_out, m // groups_out, groups_in, n // groups_in)
    re, im = planes_of[0, ...], planes_of[1, ...]  # a number alone as an index would copy
    to_re = mx.stack([re, -im], axis=3)  # [go, m/go, gi, 2, n/gi]
    to_im = mx.stack([im, re], axis=3)
    return mx.stack([to_re, to_im], axis=1).reshape(2 * m, 2 * n)


def linear(x: mx.array, weight: mx.array, groups_out: int = 1, groups_in: int = 1) -> mx.array:
    """y = W x: y_re = W_re x_re - W_im x_im, y_im = W_im x_re + W_re x_im.

    x: `[..., 2, n]`, or `[..., groups_in, 2, n/groups_in]` with several groups.
    weight: `[2, m, n]`.
    Returns `[..., 2, m]`, or `[..., groups_out, 2, m/groups_out]` with several groups, in the
    weight's type.
    """
    _, m, n = weight.shape
    lead = x.shape[: -2 if groups_in == 1 else -3]
    shape_out = (*lead, 2, m) if groups_out == 1 else (*lead, groups_out, 2, m // groups_out)
    if x.size // (2 * n) > FEW_ROWS:
        flat = x.reshape(*lead, 2 * n)
        return product(flat, block_weight(weight, groups_out, groups_in)).reshape(shape_out)
    x = x.reshape(*lead, groups_in, 2, n // groups_in).swapaxes(-3, -2).reshape(*lead, 2, n)
    by_re = product(x, weight[0, ...])  # [..., 2, m]: W_re on both planes
    by_im = product(x, weight[1, ...])
    y = by_re + times_i(by_im)
    return y.reshape(*lead, 2, groups_out, m // groups_out).swapaxes(-3, -2).reshape(shape_out)
