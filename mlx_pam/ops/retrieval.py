"""The memory's operator: accumulate outer products under decay, read them with a query.

    S_t = gamma_t S_{t-1} + v_t k_t^H        (eq. 6)
    y_t = S_t q_t                            (eq. 7)

Equal forms stand behind one door, `retrieve`. Shapes, everywhere in this file:

    B batch   T time   H heads   d head width   C tokens of a chunk   n chunks
    q, k, v, y   [B, T, H, 2, d] complex, [B, T, H, d] real; written [B, T, H, (2,) d]
    log_decay    [B, T, H], log gamma <= 0
    state        [B, H, (2,) d, d], float32; the value's index first, the key's second

Decays are summed in float32 over the very steps that they span: never as a difference of two long
sums, which loses a small decay beside a large one and is NaN at gamma = 0; never as a quotient; and
masked before the exponential.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import mlx.core as mx

from mlx_pam.errors import ConfigError
from mlx_pam.ops import complex as cx
from mlx_pam.ops import metal
from mlx_pam.ops.decay import step_factors

Form = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]]

# The chunks of one span meet in an n x n product; the state is carried from span to span.
CHUNKS_PER_SPAN = 32


def chunk_size(d: int) -> int:
    """C: the d x d state and the C x C scores of a chunk should weigh about the same."""
    return 32 if d < 32 else 64


def retrieve(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    state: mx.array | None = None,
    form: str = "auto",
) -> tuple[mx.array, mx.array]:
    """y_t = sum_{i<=t} (gamma_{i+1} ... gamma_t) <k_i, q_t> v_i + (gamma_1 ... gamma_t) S_0 q_t.

    Eq. 7 with a carried state; heads and rows of the batch do not meet.

    q, k, v: `[B, T, H, 2, d]` (complex) or `[B, T, H, d]` (real), T >= 1; the query comes scaled.
    log_decay: `[B, T, H]`, log gamma in [-inf, 0]; -inf forgets exactly. A value above 0 makes the
    state grow without bound; it is not looked for, since that would wait for the device.
    state: S_0, zeros if None.
    form: "recurrent", "parallel", "chunkwise", "fused", or "auto": the form that the environment
    names in MLX_PAM_FORM, else the best for device and shapes.
    Returns y, like q, and S_T in float32. Raises `ConfigError` on an unknown form, one that cannot
    run here, shapes that do not fit, or arrays that are not floating point.
    """
    _check_inputs(q, k, v, log_decay, state)
    form = wanted_form(form)
    if form == "auto":
        form = _best_form(q, k, v)
    if form not in NAMES:
        names = ", ".join(NAMES)
        raise ConfigError(f"form (or MLX_PAM_FORM) must be one of {names}, got {form!r}")
    if state is None:
        batch, _, heads, *planes, d = q.shape
        state = mx.zeros((batch, heads, *planes, d, d), mx.float32)
    function = FORMS.get(form, metal.fused)  # which says why, where it cannot run
    return function(q, k, v, log_decay.astype(mx.float32), state.astype(mx.float32))


def wanted_form(form: str = "auto") -> str:
    """The argument's, else that of MLX_PAM_FORM in the environment, else "auto"."""
    return (os.environ.get("MLX_PAM_FORM") or form) if form == "auto" else form


def _best_form(q, k, v) -> str:
    """Kernels where they run, for one token, many, and their gradients: no scores in memory.

    Elsewhere a token as it is, and more in chunks.
    """
    if metal.available():
        obstacle = metal.unsupported(q, k, v)
        if obstacle is None:
            return "fused"
        # Python shows one warning once
        warnings.warn(f'the memory runs without kernels: form="fused" {obstacle}', stacklevel=1)
    return "recurrent" if q.shape[1] == 1 else "chunkwise"


def _check_inputs(q, k, v, log_decay, state) -> None:
    named = {"q": q, "k": k, "v": v, "log_decay": log_decay, "state": state}
    for name, x in named.items():
        if x is not None and not mx.issubdtype(x.dtype, mx.floating):
            dtype = str(x.dtype).removeprefix("mlx.core.")
            raise ConfigError(f"{name} must be floating point, got {dtype}")
    if q.ndim not in (4, 5) or (q.ndim == 5 and q.shape[3] != 2):
        raise ConfigError(f"q must be [B, T, H, 2, d] or [B, T, H, d], got {q.shape}")
    if not q.shape == k.shape == v.shape:
        raise ConfigError(f"q, k and v must have one shape, got {q.shape}, {k.shape} and {v.shape}")
    if log_decay.shape != q.shape[:3]:
        raise ConfigError(f"log_decay must be [B, T, H] = {q.shape[:3]}, got {log_decay.shape}")
    batch, time, heads, *planes, d = q.shape
    if min(batch, time, heads, d) < 1:
        raise ConfigError(f"B, T, H and d must be at least 1, got {batch}, {time}, {heads} and {d}")
    if state is not None and state.shape != (batch, heads, *planes, d, d):
        raise ConfigError(f"state must be {(batch, heads, *planes, d, d)}, got {state.shape}")


def recurrent(q, k, v, log_decay, state):
    """Token by token as eq. 6 stands: O(H d^2) a token, constant memory."""
    factors = step_factors(log_decay)  # [B, T, H] each
    outputs = []
    for t in range(q.shape[1]):
        a, b = (mx.expand_dims(x[:, t], tuple(range(2, state.ndim))) for x in factors)
        write = _outer(v[:, t].astype(mx.float32), k[:, t].astype(mx.float32))
        state = a * state + (b * state + write)
        outputs.append(_read(state, q[:, t].astype(mx.float32)))  # [B, H, (2,) d]
    return mx.stack(outputs, axis=1).astype(q.dtype), state


def parallel(q, k, v, log_decay, state):
    """The paper's dual form Y = ((Q K^H) * D) V: T x T scores, one chunk that holds everything."""
    return _span(q, k, v, log_decay, state, q.shape[1])


def chunkwise(q, k, v, log_decay, state):
    """The dual form inside chunks, the state carried between them: O(T C), memory linear in T."""
    size = chunk_size(q.shape[-1])
    span, outputs = size * CHUNKS_PER_SPAN, []
    for start in range(0, q.shape[1], span):
        part = (x[:, start : start + span] for x in (q, k, v, log_decay))
        y, state = _span(*part, state, size)
        outputs.append(y)
    return (outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1)), state


# What runs on this machine, to go through it; `retrieve` asks anew whether "fused" can.
FORMS: dict[str, Form] = {"recurrent": recurrent, "parallel": parallel, "chunkwise": chunkwise}
NAMES = ("auto", *FORMS, "fused")
if metal.available():
    FORMS["fused"] = metal.fused


def decay_matrix(log_decay: mx.array) -> mx.array:
    """D[t, i] = exp(sum_{j=i+1..t} log gamma_j) for i <= t, else 0. `[..., T]` -> `[..., T, T]`."""
    time = log_decay.shape[-1]
    row, column = mx.arange(time)[:, None], mx.arange(time)[None, :]
    # step t counts in the columns before it
    steps = mx.where(row > column, log_decay[..., :, None], 0)
    sums = mx.cumsum(steps, axis=-2)
    return mx.exp(mx.where(row >= column, sums, -mx.inf))


def _span(q, k, v, log_decay, state, size):
    """The dual form over chunks of at most `size` tokens, all at once: y and the state after."""
    batch, time, heads, *planes, d = q.shape
    size = min(size, time)
    n = -(-time // size)
    q, k, v = (_chunks(x, n, size) for x in (q, k, v))  # [BH, n, C, (2,) d]
    steps = _chunks(log_decay, n, size)  # [BH, n, C]
    since_start = mx.cumsum(steps, axis=-1)  # log decay of steps 1..t of the chunk
    until_end = _sums_after(steps)  # log decay of steps t+1..C of the chunk
    chunk_steps = since_start[..., -1]  # [BH, n]

    values, keys = v.astype(mx.float32), _scaled(k.astype(mx.float32), until_end)
    writes = _accumulate(values, keys)  # [BH, n, (2,) d, d]: a chunk's own S, float32 as the state
    first = state.reshape(batch * heads, 1, -1)  # [BH, 1, (2) d d]
    a, b = (x[..., None] for x in step_factors(mx.cumsum(chunk_steps, axis=-1)))  # [BH, n, 1]
    after = decay_matrix(chunk_steps) @ writes.reshape(batch * heads, n, -1)
    after = a * first + (b * first + after)  # [BH, n, (2) d d]
    before = mx.concatenate([first, after[:, :-1]], axis=1).reshape(writes.shape)

    y = _inside(q, k, v, decay_matrix(steps))
    y = y + _carried(_scaled(q, since_start), before.astype(q.dtype))
    y = y.reshape(batch, heads, n * size, *planes, d)[:, :, :time].swapaxes(1, 2)
    return y, after[:, -1].reshape(state.shape)


def _chunks(x, n, size):
    """`[B, T, H, ...]` -> `[BH, n, C, ...]`, padded by tokens that write and decay nothing."""
    batch, time, heads, *rest = x.shape
    x = x.swapaxes(1, 2)  # [B, H, T, ...]
    if n * size > time:
        x = mx.pad(x, [(0, 0), (0, 0), (0, n * size - time), *[(0, 0)] * len(rest)])
    return x.reshape(batch * heads, n, size, *rest)


def _sums_after(steps):
    """sum_{j>t} of the last axis, `[..., C]`, added up and not subtracted."""
    later = mx.cumsum(steps[..., 1:], axis=-1, reverse=True)
    return mx.concatenate([later, mx.zeros_like(steps[..., :1])], axis=-1)


def _scaled(x, log_scale):
    """x_t exp(log_scale_t). x: `[BH, n, C, (2,) d]`, log_scale: `[BH, n, C]`."""
    return x * mx.expand_dims(mx.exp(log_scale), tuple(range(3, x.ndim))).astype(x.dtype)


def _inside(q, k, v, decay):
    """((Q K^H) * D) V in each chunk. q, k, v: `[BH, n, C, (2,) d]`; decay: `[BH, n, C, C]`."""
    if q.ndim == 4:
        weights = ((q @ k.swapaxes(-1, -2)) * decay).astype(q.dtype)  # [BH, n, C, C]
        return weights @ v
    # Re(q k^H) = <q, k> and Im(q k^H) = <-iq, k> as real products over both planes at once, and
    # then y = (Re W) v + (Im W) iv: two products in place of eight
    rows = mx.concatenate([q, -cx.times_i(q)], axis=2)  # [BH, n, 2C, 2, d]
    scores = mx.flatten(rows, -2) @ mx.flatten(k, -2).swapaxes(-1, -2)  # [BH, n, 2C, C]
    re, im = mx.split(scores, 2, axis=2)
    weights = mx.concatenate([re * decay, im * decay], axis=-1).astype(q.dtype)  # [BH, n, C, 2C]
    values = mx.concatenate([v, cx.times_i(v)], axis=2)  # [BH, n, 2C, 2, d]
    return (weights @ mx.flatten(values, -2)).reshape(v.shape)


def _accumulate(v, k):
    """sum_t v_t k_t^H over each chunk. `[BH, n, C, (2,) d]` -> `[BH, n, (2,) d, d]`."""
    if v.ndim == 4:
        return v.swapaxes(-1, -2) @ k
    d = v.shape[-1]
    products = mx.flatten(v, -2).swapaxes(-1, -2) @ mx.flatten(k, -2)  # [BH, n, 2d, 2d]
    products = products.reshape(*v.shape[:2], 2, d, 2, d)  # each plane of v with each of k
    re = products[:, :, 0, :, 0] + products[:, :, 1, :, 1]
    im = products[:, :, 1, :, 0] - products[:, :, 0, :, 1]
    return mx.stack([re, im], axis=2)


def _carried(q, state):
    """S q_t, S before each chunk. q: `[BH, n, C, (2,) d]`; state: `[BH, n, (2,) d, d]`."""
    if q.ndim == 4:
        return q @ state.swapaxes(-1, -2)
    re, im = state[:, :, 0], state[:, :, 1]  # [BH, n, d, d]
    to_re, to_im = mx.concatenate([re, -im], axis=-1), mx.concatenate([im, re], axis=-1)
    block = mx.concatenate([to_re, to_im], axis=-2)  # [BH, n, 2d, 2d]
    return (mx.flatten(q, -2) @ block.swapaxes(-1, -2)).reshape(q.shape)


def _outer(v, k):
    """v k^H of one token: `[B, H, (2,) d]` -> `[B, H, (2,) d, d]`."""
    if v.ndim == 3:
        return v[..., :, None] * k[..., None, :]
    v_re, v_im = (x[..., :, None] for x in cx.planes(v))
    k_re, k_im = (x[..., None, :] for x in cx.planes(k))
    return mx.stack([v_re * k_re + v_im * k_im, v_im * k_re - v_re * k_im], axis=2)


def _read(state, q):
    """S q of one token: `[B, H, (2,) d, d]`, `[B, H, (2,) d]` -> `[B, H, (2,) d]`."""
    if q.ndim == 3:
        return (state @ q[..., None])[..., 0]
    products = state @ q.swapaxes(-1, -2)[:, :, None]  # [B, H, 2, d, 2]: planes of S, of q
    re = products[:, :, 0, :, 0] - products[:, :, 1, :, 1]
    im = products[:, :, 1, :, 0] + products[:, :, 0, :, 1]
    return mx.stack([re, im], axis=2)
