"""Kernel over chunks, backward: gradients of q, k, v and log decay.

With S the state before a chunk and G = dL/dS after it, A = Q K^H, Z = dY V^H, D the decays:

    dv_i = sum_{t>=i} conj(A * D)[t, i] dy_t + (gamma_{i+1} ... gamma_C) G k_i
    dk_i = sum_{t>=i} conj(Z * D)[t, i] q_t  + (gamma_{i+1} ... gamma_C) G^H v_i
    dq_t = sum_{i<=t} (Z * D)[t, i] k_i      + (gamma_1 ... gamma_t) S^H dy_t

gamma_s counts in whatever is written before step s and read at it or after:

    dlog gamma_s = sum_{i<s<=t} D[t, i] Re(conj(Z) A)[t, i]              both in the chunk
                 + sum_{t>=s} (gamma_1 ... gamma_t) Re<dy_t, S q_t>      written before the chunk
                 + sum_{i<s} (gamma_{i+1} ... gamma_C) Re<G k_i, v_i>    read after the chunk
                 + (gamma_1 ... gamma_C) Re<G, S>                        both outside

No sum here has a term without gamma_s in it, to be subtracted again: at gamma_s = 0 all are 0.
Shapes as in `chunks`; each gradient is like its input.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlx_pam.torch.kernels.tiles import (
    add_inner,
    add_product,
    decay_matrix,
    decay_steps,
    load,
    read_state,
    scores,
    since_start,
    store,
    until_end,
)


@triton.jit(do_not_specialize=["T", "H", "n"])
def chunk_gradients(
    q, k, v, log_decay, dy, states, adjoints, dq, dk, dv, dlog_decay, T, H, n,
    D: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk of one head. states: S before each chunk; adjoints: G after each."""
    chunk = tl.program_id(0) % n
    head = (tl.program_id(0) // n).to(tl.int64)  # of all B H
    row = H * PLANES * D  # elements from one token to the next
    start = head // H * T + chunk * C
    tokens = start * row + head % H * (PLANES * D)
    q += tokens
    k += tokens
    v += tokens
    dy += tokens
    dq += tokens
    dk += tokens
    dv += tokens
    log_decay += start * H + head % H
    dlog_decay += start * H + head % H
    size: tl.constexpr = PLANES * D * D
    states += (head * n + chunk) * size
    adjoints += (head * n + chunk) * size
    count = T - chunk * C

    steps = decay_steps(log_decay, count, H, C)  # [C]
    from_start = since_start(steps)[:, None]  # [C, 1]
    to_end = until_end(log_decay, count, H, C)[:, None]  # [C, 1]
    decay = decay_matrix(steps, C)  # [C, C]

    s_re, s_im = scores(q, k, row, count, D, C, BLOCK, PLANES, OPERAND, PRECISION)
    a_re, a_im = (s_re * decay).to(OPERAND), (s_im * decay).to(OPERAND)  # A * D, [t, i]
    s_re, s_im = scores(dy, v, row, count, D, C, BLOCK, PLANES, OPERAND, PRECISION)
    z_re, z_im = (s_re * decay).to(OPERAND), (s_im * decay).to(OPERAND)  # Z * D, [t, i]
    pairs = s_re * a_re  # D Re(conj(Z) A), [t, i]
    if PLANES == 2:
        pairs += s_im * a_im

    t = tl.arange(0, C)
    before = t[None, :] < t[:, None]  # i < s, [s, i]
    read_since = tl.cumsum(pairs, 0, reverse=True)  # sum over t >= s, [s, i]
    dsteps = tl.sum(tl.where(before, read_since, 0.0), 1)  # [C]

    channel = tl.arange(0, BLOCK)[None, :]
    at_re, at_im = tl.trans(a_re), tl.trans(a_im)  # [i, t]
    for i in range(0, D, BLOCK):
        tile = t[:, None] * row + i + channel
        inside = (t[:, None] < count) & (i + channel < D)
        re, im = read_state(
            adjoints, k, row, count, i, False, D, C, BLOCK, PLANES, OPERAND, PRECISION
        )  # G k_i, [C, BLOCK]
        dy_re, dy_im = load(dy + tile, inside, D, PLANES)  # [C, BLOCK]
        re, im = add_product(
            re * to_end, im * to_end, at_re, at_im, dy_re, dy_im, "left", PLANES, OPERAND, PRECISION
        )
        store(dv + tile, inside, D, re, im, PLANES)

    read = tl.zeros([C], tl.float32)  # (gamma_1 ... gamma_t) Re<dy_t, S q_t>
    for i in range(0, D, BLOCK):
        tile = t[:, None] * row + i + channel
        inside = (t[:, None] < count) & (i + channel < D)
        re, im = read_state(
            states, dy, row, count, i, True, D, C, BLOCK, PLANES, OPERAND, PRECISION
        )  # S^H dy_t, [C, BLOCK]
        re *= from_start
        im *= from_start
        q_re, q_im = load(q + tile, inside, D, PLANES)  # [C, BLOCK]
        read = add_inner(read, re, im, q_re, q_im, PLANES)
        k_re, k_im = load(k + tile, inside, D, PLANES)  # [C, BLOCK]
        re, im = add_product(re, im, z_re, z_im, k_re, k_im, "none", PLANES, OPERAND, PRECISION)
        store(dq + tile, inside, D, re, im, PLANES)

    zt_re, zt_im = tl.trans(z_re), tl.trans(z_im)  # [i, t]
    write = tl.zeros([C], tl.float32)  # (gamma_{i+1} ... gamma_C) Re<G k_i, v_i>
    for i in range(0, D, BLOCK):
        tile = t[:, None] * row + i + channel
        inside = (t[:, None] < count) & (i + channel < D)
        re, im = read_state(
            adjoints, v, row, count, i, True, D, C, BLOCK, PLANES, OPERAND, PRECISION
        )  # G^H v_i, [C, BLOCK]
        re *= to_end
        im *= to_end
        k_re, k_im = load(k + tile, inside, D, PLANES)  # [C, BLOCK]
        write = add_inner(write, re, im, k_re, k_im, PLANES)
        q_re, q_im = load(q + tile, inside, D, PLANES)  # [C, BLOCK]
        re, im = add_product(re, im, zt_re, zt_im, q_re, q_im, "left", PLANES, OPERAND, PRECISION)
        store(dk + tile, inside, D, re, im, PLANES)

    width: tl.constexpr = 256
    both = tl.zeros([width], tl.float32)
    for part in range(0, size, width):
        entry = part + tl.arange(0, width)
        adjoint = tl.load(adjoints + entry, mask=entry < size, other=0.0)
        both += adjoint * tl.load(states + entry, mask=entry < size, other=0.0)

    dsteps += tl.cumsum(read, 0, reverse=True)
    dsteps += tl.sum(tl.where(before, write[None, :], 0.0), 1)
    dsteps += tl.exp(tl.sum(steps, 0)) * tl.sum(both, 0)
    tl.store(dlog_decay + t * H, dsteps, mask=t < count)
