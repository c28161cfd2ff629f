"""The memory's operator in PyTorch: accumulate outer products under decay, read them with a query.

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

import torch
import torch.nn.functional as F
from torch import Tensor

from mlx_pam.errors import BackendError, ConfigError
from mlx_pam.torch import kernels
from mlx_pam.torch.ops import complex as cx
from mlx_pam.torch.ops.decay import step_factors

Form = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

# The chunks of one span meet in an n x n product; the state is carried from span to span.
CHUNKS_PER_SPAN = 32


def chunk_size(d: int) -> int:
    """C: the d x d state and the C x C scores of a chunk should weigh about the same."""
    return 32 if d < 32 else 64


def retrieve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """y_t = sum_{i<=t} (gamma_{i+1} ... gamma_t) <k_i, q_t> v_i + (gamma_1 ... gamma_t) S_0 q_t.

    Eq. 7 with a carried state; heads and rows of the batch do not meet.

    q, k, v: `[B, T, H, 2, d]` (complex) or `[B, T, H, d]` (real), T >= 1; the query comes scaled.
    log_decay: `[B, T, H]`, log gamma in [-inf, 0]; -inf forgets exactly. A value above 0 makes the
    state grow without bound; it is not looked for, since that would wait for the device.
    state: S_0, zeros if None.
    form: a name in `FORMS`, or "auto": the form that the environment names in MLX_PAM_FORM, else
    the best for device and shapes.
    Returns y, like q, and S_T in float32. Raises `ConfigError` on an unknown form, shapes that do
    not fit or tensors that are not floating point, `BackendError` on a form that cannot run here.
    """
    _check_inputs(q, k, v, log_decay, state)
    if form == "auto":
        form = os.environ.get("MLX_PAM_FORM") or "auto"
    if form == "auto":
        form = _best_form(q)
    if form == "fused" and kernels.ABSENCE:
        raise BackendError(f'form="fused" {kernels.ABSENCE}')
    if form not in FORMS:
        names = ", ".join(["auto", *FORMS])
        raise ConfigError(f"form (or MLX_PAM_FORM) must be one of {names}, got {form!r}")
    if state is None:
        batch, _, heads, *planes, d = q.shape
        state = q.new_zeros((batch, heads, *planes, d, d), dtype=torch.float32)
    with torch.autocast(q.device.type, enabled=False):  # each product below has the type it needs
        return FORMS[form](q, k, v, log_decay.float(), state.float())


def _best_form(q) -> str:
    """Kernels where they run: no scores in memory. Else a token as it is, and more in chunks."""
    if q.is_cuda:
        obstacle = kernels.obstacle(q)
        if obstacle is None:
            return "fused"
        if not torch.compiler.is_compiling():  # Python shows one warning once
            warnings.warn(f'the memory runs without kernels: form="fused" {obstacle}', stacklevel=1)
    return "recurrent" if q.shape[1] == 1 else "chunkwise"


def _check_inputs(q, k, v, log_decay, state) -> None:
    named = {"q": q, "k": k, "v": v, "log_decay": log_decay, "state": state}
    for name, x in named.items():
        if x is not None and not x.is_floating_point():
            dtype = str(x.dtype).removeprefix("torch.")
            raise ConfigError(f"{name} must be floating point, got {dtype}")
    if q.ndim not in (4, 5) or (q.ndim == 5 and q.shape[3] != 2):
        raise ConfigError(f"q must be [B, T, H, 2, d] or [B, T, H, d], got {tuple(q.shape)}")
    if not q.shape == k.shape == v.shape:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ConfigError(f"q, k and v must have one shape, got {shapes}")
    batch, time, heads, *planes, d = q.shape
    if log_decay.shape != (batch, time, heads):
        expected, got = (batch, time, heads), tuple(log_decay.shape)
        raise ConfigError(f"log_decay must be [B, T, H] = {expected}, got {got}")
    if min(batch, time, heads, d) < 1:
        raise ConfigError(f"B, T, H and d must be at least 1, got {batch}, {time}, {heads} and {d}")
    if state is not None and state.shape != (batch, heads, *planes, d, d):
        expected = (batch, heads, *planes, d, d)
        raise ConfigError(f"state must be {expected}, got {tuple(state.shape)}")


def recurrent(q, k, v, log_decay, state):
    """Token by token as eq. 6 stands: O(H d^2) a token, constant memory."""
    factors = step_factors(log_decay)  # [B, T, H] each
    outputs = []
    for t in range(q.shape[1]):
        a, b = (x[:, t].reshape(*state.shape[:2], *[1] * (state.ndim - 2)) for x in factors)
        state = a * state + (b * state + _outer(v[:, t].float(), k[:, t].float()))
        outputs.append(_read(state, q[:, t].float()))  # [B, H, (2,) d]
    return torch.stack(outputs, dim=1).to(q.dtype), state


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
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), state


FORMS: dict[str, Form] = {"recurrent": recurrent, "parallel": parallel, "chunkwise": chunkwise}
if kernels.ABSENCE is None:
    FORMS["fused"] = kernels.fused


def decay_matrix(log_decay: Tensor) -> Tensor:
    """D[t, i] = exp(sum_{j=i+1..t} log gamma_j) for i <= t, else 0. `[..., T]` -> `[..., T, T]`."""
    time = log_decay.shape[-1]
    past = torch.ones(time, time, dtype=torch.bool, device=log_decay.device).tril()
    # step t counts in the columns before it
    steps = torch.where(past.tril(-1), log_decay[..., :, None], 0.0)
    return torch.exp(torch.where(past, steps.cumsum(dim=-2), -torch.inf))


def _span(q, k, v, log_decay, state, size):
    """The dual form over chunks of at most `size` tokens, all at once: y and the state after."""
    batch, time, heads, *planes, d = q.shape
    size = min(size, time)
    n = -(-time // size)
    q, k, v = (_chunks(x, n, size) for x in (q, k, v))  # [BH, n, C, (2,) d]
    steps = _chunks(log_decay, n, size)  # [BH, n, C]
    since_start = steps.cumsum(dim=-1)  # log decay of steps 1..t of the chunk
    until_end = _sums_after(steps)  # log decay of steps t+1..C of the chunk
    chunk_steps = since_start[..., -1]  # [BH, n]

    values, keys = v.float(), _scaled(k.float(), until_end)
    writes = _accumulate(values, keys)  # [BH, n, (2,) d, d]: a chunk's own S, float32 as the state
    first = state.reshape(batch * heads, 1, -1)  # [BH, 1, (2) d d]
    a, b = (x[..., None] for x in step_factors(chunk_steps.cumsum(dim=-1)))  # [BH, n, 1]
    after = decay_matrix(chunk_steps) @ writes.reshape(batch * heads, n, -1)
    after = a * first + (b * first + after)  # [BH, n, (2) d d]
    before = torch.cat([first, after[:, :-1]], dim=1).view(writes.shape)

    y = _inside(q, k, v, decay_matrix(steps))
    y = y + _carried(_scaled(q, since_start), before.to(q.dtype))
    y = y.reshape(batch, heads, n * size, *planes, d)[:, :, :time].transpose(1, 2)
    return y, after[:, -1].reshape(state.shape)


def _chunks(x, n, size):
    """`[B, T, H, ...]` -> `[BH, n, C, ...]`, padded by tokens that write and decay nothing."""
    batch, time, heads, *rest = x.shape
    x = x.transpose(1, 2)  # [B, H, T, ...]
    if n * size > time:
        x = F.pad(x, (*[0, 0] * len(rest), 0, n * size - time))
    return x.reshape(batch * heads, n, size, *rest)


def _sums_after(steps):
    """sum_{j>t} of the last dimension, `[..., C]`, added up and not subtracted."""
    later = steps[..., 1:].flip(-1).cumsum(dim=-1).flip(-1)
    return F.pad(later, (0, 1))


def _scaled(x, log_scale):
    """x_t exp(log_scale_t). x: `[BH, n, C, (2,) d]`, log_scale: `[BH, n, C]`."""
    scale = torch.exp(log_scale).reshape(*log_scale.shape, *[1] * (x.ndim - 3))
    return (x * scale).to(x.dtype)


def _inside(q, k, v, decay):
    """((Q K^H) * D) V in each chunk. q, k, v: `[BH, n, C, (2,) d]`; decay: `[BH, n, C, C]`."""
    if q.ndim == 4:
        weights = ((q @ k.transpose(-1, -2)) * decay).to(q.dtype)  # [BH, n, C, C]
        return weights @ v
    # Re(q k^H) = <q, k> and Im(q k^H) = <-iq, k> as real products over both planes at once, and
    # then y = (Re W) v + (Im W) iv: two products in place of eight
    rows = torch.cat([q, -cx.times_i(q)], dim=2)  # [BH, n, 2C, 2, d]
    scores = rows.flatten(-2) @ k.flatten(-2).transpose(-1, -2)  # [BH, n, 2C, C]
    re, im = scores.chunk(2, dim=2)
    weights = torch.cat([re * decay, im * decay], dim=-1).to(q.dtype)  # [BH, n, C, 2C]
    values = torch.cat([v, cx.times_i(v)], dim=2)  # [BH, n, 2C, 2, d]
    return (weights @ values.flatten(-2)).view(v.shape)


def _accumulate(v, k):
    """sum_t v_t k_t^H over each chunk. `[BH, n, C, (2,) d]` -> `[BH, n, (2,) d, d]`."""
    if v.ndim == 4:
        return v.transpose(-1, -2) @ k
    d = v.shape[-1]
    products = v.flatten(-2).transpose(-1, -2) @ k.flatten(-2)  # [BH, n, 2d, 2d]
    products = products.view(*v.shape[:2], 2, d, 2, d)  # each plane of v with each of k
    re = products[:, :, 0, :, 0] + products[:, :, 1, :, 1]
    im = products[:, :, 1, :, 0] - products[:, :, 0, :, 1]
    return torch.stack([re, im], dim=2)


def _carried(q, state):
    """S q_t, S before each chunk. q: `[BH, n, C, (2,) d]`; state: `[BH, n, (2,) d, d]`."""
    if q.ndim == 4:
        return q @ state.transpose(-1, -2)
    re, im = state.unbind(2)  # [BH, n, d, d]
    to_re, to_im = torch.cat([re, -im], dim=-1), torch.cat([im, re], dim=-1)
    block = torch.cat([to_re, to_im], dim=-2)  # [BH, n, 2d, 2d]
    return (q.flatten(-2) @ block.transpose(-1, -2)).view(q.shape)


def _outer(v, k):
    """v k^H of one token: `[B, H, (2,) d]` -> `[B, H, (2,) d, d]`."""
    if v.ndim == 3:
        return v[..., :, None] * k[..., None, :]
    v_re, v_im = (x[..., :, None] for x in cx.planes(v))
    k_re, k_im = (x[..., None, :] for x in cx.planes(k))
    return torch.stack([v_re * k_re + v_im * k_im, v_im * k_re - v_re * k_im], dim=2)


def _read(state, q):
    """S q of one token: `[B, H, (2,) d, d]`, `[B, H, (2,) d]` -> `[B, H, (2,) d]`."""
    if q.ndim == 3:
        return (state @ q[..., None])[..., 0]
    products = state @ q.transpose(-1, -2)[:, :, None]  # [B, H, 2, d, 2]: planes of S, of q
    re = products[:, :, 0, :, 0] - products[:, :, 1, :, 1]
    im = products[:, :, 1, :, 0] + products[:, :, 0, :, 1]
    return torch.stack([re, im], dim=2)
