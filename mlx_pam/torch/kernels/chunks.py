"""Kernels over chunks, forward: the state at every border between chunks, and what a chunk reads.

    B batch   T time   H heads   d head width   P planes   C tokens of a chunk   n chunks
    q, k, v, y [B, T, H, P, d]   log_decay [B, T, H]   states [B, H, n, P, d, d] float32

The scores, C x C, stay in registers. All arrays are contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlx_pam.torch.kernels.tiles import (
    add_product,
    decay_matrix,
    decay_steps,
    load,
    read_state,
    scores,
    since_start,
    step_factors,
    store,
    until_end,
)


@triton.jit(do_not_specialize=["T", "H", "n"])  # one compiled kernel for every length
def chunk_states(
    left, right, log_decay, first, states, last, T, H, n,
    D: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    REVERSE: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The decayed sum of outer products at every border between chunks.

    left = v, right = k, first = S_0: states are S before each chunk, last is S_T.

        S <- (gamma_1 ... gamma_C) S + sum_t (gamma_{t+1} ... gamma_C) v_t k_t^H

    REVERSE, left = dy, right = q, first = dS_T: states are G = dL/dS after each chunk, last is
    dS_0.

        G <- (gamma_1 ... gamma_C) G + sum_t (gamma_1 ... gamma_t) dy_t q_t^H

    A program keeps BLOCK x BLOCK entries of one head's state and walks through the chunks.
    """
    side: tl.constexpr = (D + BLOCK - 1) // BLOCK
    block = tl.program_id(0) % (side * side)
    head = (tl.program_id(0) // (side * side)).to(tl.int64)  # of all B H
    row = H * PLANES * D  # elements from one token to the next
    start = head // H * T
    left += start * row + head % H * (PLANES * D)
    right += start * row + head % H * (PLANES * D)
    log_decay += start * H + head % H

    size: tl.constexpr = PLANES * D * D
    value = block // side * BLOCK + tl.arange(0, BLOCK)
    key = block % side * BLOCK + tl.arange(0, BLOCK)
    entry = value[:, None] * D + key[None, :]
    inside = (value[:, None] < D) & (key[None, :] < D)
    re, im = load(first + head * size + entry, inside, D * D, PLANES)  # [BLOCK, BLOCK]

    t = tl.arange(0, C)
    for step in range(n):
        chunk = n - 1 - step if REVERSE else step
        store(states + (head * n + chunk) * size + entry, inside, D * D, re, im, PLANES)

        tokens = chunk.to(tl.int64) * C
        count = T - chunk * C
        steps = decay_steps(log_decay + tokens * H, count, H, C)  # [C]
        if REVERSE:
            weight = since_start(steps)[None, :]  # [1, C]
        else:
            weight = until_end(log_decay + tokens * H, count, H, C)[None, :]  # [1, C]
        a = left + tokens * row + (t[None, :] * row + value[:, None])
        b = right + tokens * row + (t[:, None] * row + key[None, :])
        a_re, a_im = load(a, (t[None, :] < count) & (value[:, None] < D), D, PLANES)  # [BLOCK, C]
        b_re, b_im = load(b, (t[:, None] < count) & (key[None, :] < D), D, PLANES)  # [C, BLOCK]

        rest, change = step_factors(tl.sum(steps, 0))  # of gamma_1 ... gamma_C
        re = rest * re + change * re
        im = rest * im + change * im
        re, im = add_product(
            re, im, a_re * weight, a_im * weight, b_re, b_im,
            "right", PLANES, OPERAND, PRECISION,
        )  # fmt: skip
    store(last + head * size + entry, inside, D * D, re, im, PLANES)


@triton.jit(do_not_specialize=["T", "H", "n"])
def chunk_outputs(
    q, k, v, log_decay, states, y, T, H, n,
    D: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y of one chunk of one head, S the state before it.

    y_t = sum_{i<=t} (gamma_{i+1} ... gamma_t) <k_i, q_t> v_i + (gamma_1 ... gamma_t) S q_t
    """
    chunk = tl.program_id(0) % n
    head = (tl.program_id(0) // n).to(tl.int64)  # of all B H
    row = H * PLANES * D  # elements from one token to the next
    start = head // H * T + chunk * C
    tokens = start * row + head % H * (PLANES * D)
    q += tokens
    k += tokens
    v += tokens
    y += tokens
    log_decay += start * H + head % H
    states += (head * n + chunk) * (PLANES * D * D)
    count = T - chunk * C

    steps = decay_steps(log_decay, count, H, C)  # [C]
    from_start = since_start(steps)[:, None]  # [C, 1]
    decay = decay_matrix(steps, C)  # [C, C]
    s_re, s_im = scores(q, k, row, count, D, C, BLOCK, PLANES, OPERAND, PRECISION)
    w_re, w_im = (s_re * decay).to(OPERAND), (s_im * decay).to(OPERAND)  # (Q K^H) * D, [C, C]

    t = tl.arange(0, C)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    for i in range(0, D, BLOCK):
        re, im = read_state(
            states, q, row, count, i, False, D, C, BLOCK, PLANES, OPERAND, PRECISION
        )  # S q_t, [C, BLOCK]
        tile = t * row + i + channel
        inside = (t < count) & (i + channel < D)
        v_re, v_im = load(v + tile, inside, D, PLANES)  # [C, BLOCK]
        re, im = add_product(
            re * from_start, im * from_start, w_re, w_im, v_re, v_im,
            "none", PLANES, OPERAND, PRECISION,
        )  # fmt: skip
        store(y + tile, inside, D, re, im, PLANES)
