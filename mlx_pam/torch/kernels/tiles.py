"""Pieces of the chunk kernels: loads and products of split-real tiles, decays of a chunk.

    C tokens of a chunk   d head width   P planes: 2 complex, 1 real

A complex tile is two real ones, `re` and `im`. In the real twin only `re` counts: `im` is there so
that one text serves both, and what nothing reads is not computed.

Products round their factors to OPERAND, multiply as PRECISION says and add up in float32. They are
[16 or more] cubes, so tiles narrower than that are padded with zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load(pointers, inside, plane, PLANES: tl.constexpr):
    """Both planes of a tile, 0 outside; `plane` elements lie between them."""
    re = tl.load(pointers, mask=inside, other=0.0)
    im = tl.load(pointers + plane, mask=inside, other=0.0) if PLANES == 2 else re
    return re, im


@triton.jit
def store(pointers, inside, plane, re, im, PLANES: tl.constexpr):
    """Both planes of a tile, rounded to the type of the array."""
    tl.store(pointers, re.to(pointers.dtype.element_ty), mask=inside)
    if PLANES == 2:
        tl.store(pointers + plane, im.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def add_product(
    re, im, a_re, a_im, b_re, b_im,
    CONJUGATE: tl.constexpr, PLANES: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """z + a b, or z + conj(a) b, or z + a conj(b), as CONJUGATE is "none", "left" or "right"."""
    a_re = a_re.to(OPERAND)
    b_re = b_re.to(OPERAND)
    re = tl.dot(a_re, b_re, re, input_precision=PRECISION)
    if PLANES == 2:
        a_im = a_im.to(OPERAND)
        b_im = b_im.to(OPERAND)
        # the sign goes to b: a is often kept for a whole loop, and one tile of it less with it
        if CONJUGATE == "left":
            re = tl.dot(a_im, b_im, re, input_precision=PRECISION)
            im = tl.dot(a_re, b_im, im, input_precision=PRECISION)
            im = tl.dot(a_im, -b_re, im, input_precision=PRECISION)
        elif CONJUGATE == "right":
            re = tl.dot(a_im, b_im, re, input_precision=PRECISION)
            im = tl.dot(a_im, b_re, im, input_precision=PRECISION)
            im = tl.dot(a_re, -b_im, im, input_precision=PRECISION)
        else:
            re = tl.dot(a_im, -b_im, re, input_precision=PRECISION)
            im = tl.dot(a_re, b_im, im, input_precision=PRECISION)
            im = tl.dot(a_im, b_re, im, input_precision=PRECISION)
    return re, im


@triton.jit
def add_inner(total, a_re, a_im, b_re, b_im, PLANES: tl.constexpr):
    """total + Re<a, b> of each row, [C]."""
    total += tl.sum(a_re * b_re, 1)
    if PLANES == 2:
        total += tl.sum(a_im * b_im, 1)
    return total


@triton.jit
def decay_steps(log_decay, count, H, C: tl.constexpr):
    """log gamma_t of a chunk, [C]; only its first `count` tokens are there."""
    t = tl.arange(0, C)
    return tl.load(log_decay + t * H, mask=t < count, other=0.0)


@triton.jit
def step_factors(x):
    """a and b of exp(x) S = a S + b S, x <= 0, for what a state meets at every chunk or token.

    (1, exp(x) - 1) near 1, where a rounded exp would be off the same way each time and decays pile
    that up, and (0, exp(x)) elsewhere, which forgets exactly at x = -inf.
    """
    near = x > -0.25
    tail = 1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040)))
    series = x * (1.0 + x * (1 / 2 + x * (1 / 6 + x * tail)))  # exp(x) - 1, to 2e-9 of it
    return tl.where(near, 1.0, 0.0), tl.where(near, series, tl.exp(x))


@triton.jit
def since_start(steps):
    """gamma_1 ... gamma_t, [C]."""
    return tl.exp(tl.cumsum(steps, 0))


@triton.jit
def until_end(log_decay, count, H, C: tl.constexpr):
    """gamma_{t+1} ... gamma_C, [C]: the steps after t are read and added up, not subtracted."""
    t = tl.arange(0, C) + 1
    following = tl.load(log_decay + t * H, mask=(t < C) & (t < count), other=0.0)
    return tl.exp(tl.cumsum(following, 0, reverse=True))


@triton.jit
def decay_matrix(steps, C: tl.constexpr):
    """D[t, i] = gamma_{i+1} ... gamma_t for i <= t, else 0, [C, C]: each column adds up its own."""
    t = tl.arange(0, C)[:, None]
    i = tl.arange(0, C)[None, :]
    sums = tl.cumsum(tl.where(t > i, steps[:, None], 0.0), 0)
    return tl.exp(tl.where(t >= i, sums, float("-inf")))


@triton.jit
def scores(
    x, y, row, count, D: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    PLANES: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X Y^H of the tokens of a chunk, [C, C]; `row` elements from one token to the next."""
    t = tl.arange(0, C)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    re = tl.zeros([C, C], tl.float32)
    im = tl.zeros([C, C], tl.float32)
    for j in range(0, D, BLOCK):
        tile = t * row + j + channel
        inside = (t < count) & (j + channel < D)
        x_re, x_im = load(x + tile, inside, D, PLANES)  # [C, BLOCK]
        y_re, y_im = load(y + tile, inside, D, PLANES)  # [C, BLOCK]
        re, im = add_product(
            re, im, x_re, x_im, tl.trans(y_re), tl.trans(y_im), "right", PLANES, OPERAND, PRECISION
        )
    return re, im


@triton.jit
def read_state(
    state, x, row, count, i, HERMITIAN: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr, PLANES: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Channels i to i + BLOCK of S x_t, or of S^H x_t, [C, BLOCK]: in rows X S^T, or X conj(S)."""
    t = tl.arange(0, C)[:, None]
    along = tl.arange(0, BLOCK)
    re = tl.zeros([C, BLOCK], tl.float32)
    im = tl.zeros([C, BLOCK], tl.float32)
    into = i + along[None, :]
    for j in range(0, D, BLOCK):
        inside = (t < count) & (j + along[None, :] < D)
        x_re, x_im = load(x + t * row + j + along[None, :], inside, D, PLANES)  # [C, BLOCK]
        out_of = j + along[:, None]
        inside = (out_of < D) & (into < D)
        if HERMITIAN:
            s_re, s_im = load(state + out_of * D + into, inside, D * D, PLANES)  # [BLOCK, BLOCK]
            re, im = add_product(
                re, im, x_re, x_im, s_re, s_im, "right", PLANES, OPERAND, PRECISION
            )
        else:
            s_re, s_im = load(state + into * D + out_of, inside, D * D, PLANES)  # [BLOCK, BLOCK]
            re, im = add_product(re, im, x_re, x_im, s_re, s_im, "none", PLANES, OPERAND, PRECISION)
    return re, im
