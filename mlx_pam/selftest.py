"""Every form of the memory on this very machine, against an exact loop: values and gradients.

    S_t = gamma_t S_{t-1} + v_t k_t^H        y_t = S_t q_t        gamma_t = exp(log_decay_t)

The loop runs in double precision in NumPy, token by token; T time, H heads, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mlx_pam.config import require_choice

# As shares of the largest entry of each array: (values, gradients).
TOLERANCES = {"float32": (1e-4, 1e-3), "bfloat16": (5e-2, 1e-1)}
VALUES = ("y", "S_T")
GRADIENTS = ("dq", "dk", "dv", "dlog_decay", "dS_0")

_LENGTHS = (1, 33, 200)
_WIDTHS = (16, 64)
_HEADS = 2


@dataclass(frozen=True, kw_only=True)
class SelftestConfig:
    """Hold every form of the memory against an exact loop, on this machine.

    Prints the largest error of the values y and S_T and of every gradient, as a share of the
    array's largest entry, over short and long sequences and over decays from 0 to 1.
    """

    backend: Literal["auto", "mlx", "torch"] = "auto"
    """Array library that does the work."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of matrix products."""
    json: bool = False
    """Print one JSON object instead of the table."""

    def __post_init__(self) -> None:
        require_choice("backend", self.backend, ("auto", "mlx", "torch"))
        require_choice("dtype", self.dtype, tuple(TOLERANCES))


@dataclass(frozen=True)
class Row:
    """The largest errors of one form in one kind of numbers, over all cases."""

    form: str
    numbers: str
    errors: dict[str, float]
    passed: bool


def selftest(backend: Any, dtype: str = "float32") -> Iterator[Row]:
    """One row for each form that the backend has here, in complex and in real numbers."""
    for form in backend.forms:
        for numbers in ("complex", "real"):
            worst = dict.fromkeys((*VALUES, *GRADIENTS), 0.0)
            for case in _cases(numbers):
                for name, error in _errors(backend, form, dtype, *case).items():
                    worst[name] = max(worst[name], error)
            of_value, of_gradient = TOLERANCES[dtype]
            limits = {name: of_value if name in VALUES else of_gradient for name in worst}
            passed = all(worst[name] <= limits[name] for name in worst)
            yield Row(form, numbers, worst, passed)


def exact(inputs: list[np.ndarray], cotangents: list[np.ndarray]) -> list[np.ndarray]:
    """[y, S_T, and the gradients of Re<dy, y> + Re<dS_T, S_T>], by the loop and its adjoint.

    q, k, v, y: [T, H, d], complex or real; log_decay: [T, H]; S: [H, d, d], value index first.

        G_t = dy_t q_t^H + gamma_{t+1} G_{t+1},  the last term being dS_T at t = T
        dq_t = S_t^H dy_t    dk_t = G_t^H v_t    dv_t = G_t k_t
        dlog_decay_t = gamma_t Re<G_t, S_{t-1}>    dS_0 = gamma_1 G_1
    """
    q, k, v, log_decay, state = inputs
    dy, adjoint = cotangents
    gamma = np.exp(log_decay)[..., None, None]  # [T, H, 1, 1]
    states = [state]
    for t in range(len(q)):
        states.append(gamma[t] * states[t] + _outer(v[t], k[t]))
    dq, dk, dv, dlog_decay = (np.zeros_like(x) for x in (q, k, v, log_decay))
    for t in reversed(range(len(q))):
        adjoint = adjoint + _outer(dy[t], q[t])
        dq[t] = np.einsum("hvk,hv->hk", states[t + 1].conj(), dy[t])
        dk[t] = np.einsum("hvk,hv->hk", adjoint.conj(), v[t])
        dv[t] = np.einsum("hvk,hk->hv", adjoint, k[t])
        adjoint = gamma[t] * adjoint
        dlog_decay[t] = np.einsum("hvk,hvk->h", adjoint.conj(), states[t]).real
    y = np.einsum("thvk,thk->thv", np.stack(states[1:]), q)
    return [y, states[-1], dq, dk, dv, dlog_decay, adjoint]


def _outer(v: np.ndarray, k: np.ndarray) -> np.ndarray:
    return v[..., :, None] * k[..., None, :].conj()  # [H, d, d]


def _cases(numbers: str) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Inputs and cotangents that float32 holds exactly, at every length, width and decay."""
    rng = np.random.default_rng(0)
    for time in _LENGTHS:
        for width in _WIDTHS:
            for log_decay in _decays(rng, (time, _HEADS)):
                rows, square = (time, _HEADS, width), (_HEADS, width, width)
                shapes = [rows, rows, rows, square, rows, square]
                q, k, v, state, dy, dstate = (_normal(rng, shape, numbers) for shape in shapes)
                yield [q * width**-0.5, k, v, log_decay, state], [dy, dstate]


def _decays(rng: np.random.Generator, shape: tuple[int, int]) -> Iterator[np.ndarray]:
    """log gamma: as training gives it, of every size from 0 to 1, and a cliff before a plateau."""
    with np.errstate(divide="ignore"):
        mixed = np.log(rng.choice([1, 1 - 1e-5, 0.99, 0.5, 1e-3, 0], shape))
    cliff = np.where(np.arange(shape[0])[:, None] < shape[0] // 2, -60, np.log1p(-1e-5))
    for log_decay in (-rng.exponential(0.02, shape), mixed, np.broadcast_to(cliff, shape)):
        yield log_decay.astype(np.float32).astype(np.float64)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], numbers: str) -> np.ndarray:
    re, im = rng.standard_normal((2, *shape)).astype(np.float32)
    return re + 1j * im.astype(np.float64) if numbers == "complex" else re.astype(np.float64)


def _errors(
    backend: Any, form: str, dtype: str, inputs: list[np.ndarray], cotangents: list[np.ndarray]
) -> dict[str, float]:
    values, gradients = backend.retrieve_with_gradients(
        [_planes(x) for x in inputs], [_planes(x) for x in cotangents], form, dtype
    )
    expected = [_planes(x) for x in exact(inputs, cotangents)]
    names, found = (*VALUES, *GRADIENTS), [*values, *gradients]
    return {name: _error(*pair) for name, *pair in zip(names, found, expected, strict=True)}


def _planes(z: np.ndarray) -> np.ndarray:
    """[T, H, d] -> [1, T, H, 2, d] and [H, d, d] -> [1, H, 2, d, d]; without the 2 if real."""
    if not np.iscomplexobj(z):
        return z[None]
    is_state = z.shape[-1] == z.shape[-2]
    return np.stack([z.real, z.imag], axis=-3 if is_state else -2)[None]


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference as a share of the largest expected entry; infinite if not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))
