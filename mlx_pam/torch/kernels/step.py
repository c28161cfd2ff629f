"""Kernel of one token: the state decays, takes the token in and is read, in one pass over it.

B batch   H heads   d head width   P planes: 2 complex, 1 real
q, k, v, y [B, 1, H, P, d]   log_decay [B, 1, H]   state [B, H, P, d, d] float32
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlx_pam.torch.kernels.tiles import load, step_factors, store


@triton.jit
def token_step(
    q, k, v, log_decay, state, new_state, y,
    D: tl.constexpr, PLANES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """S <- gamma S + v k^H and y = S q, for ROWS rows of one head's state.

    new_state may be state: a program reads no entry that another one writes.
    """
    head = (tl.program_id(0) // (D // ROWS)).to(tl.int64)  # of all B H
    value = tl.program_id(0) % (D // ROWS) * ROWS + tl.arange(0, ROWS)
    key = tl.arange(0, D)
    token = head * (PLANES * D)
    entry = head * (PLANES * D * D) + value[:, None] * D + key[None, :]

    rows = value[:, None] < D  # all of them
    columns = key[None, :] < D
    re, im = load(state + entry, rows & columns, D * D, PLANES)  # [ROWS, d]
    v_re, v_im = load(v + token + value[:, None], rows, D, PLANES)  # [ROWS, 1]
    k_re, k_im = load(k + token + key[None, :], columns, D, PLANES)  # [1, d]
    q_re, q_im = load(q + token + key[None, :], columns, D, PLANES)  # [1, d]
    v_re, v_im = v_re.to(tl.float32), v_im.to(tl.float32)
    rest, change = step_factors(tl.load(log_decay + head))

    re = rest * re + (change * re + v_re * k_re)
    y_re = re * q_re
    y_im = y_re
    if PLANES == 2:
        re += v_im * k_im
        im = rest * im + (change * im + v_im * k_re - v_re * k_im)
        y_re = re * q_re - im * q_im
        y_im = re * q_im + im * q_re
    store(new_state + entry, rows & columns, D * D, re, im, PLANES)
    store(y + token + value, value < D, D, tl.sum(y_re, 1), tl.sum(y_im, 1), PLANES)
