"""Random inputs of `retrieve` at every decay that matters, and what the oracle makes of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import oracle

CONSTANT_DECAYS = (1.0, 1 - 1e-5, 0.5, 1e-3, 0.0)


class Inputs(NamedTuple):
    """Arguments of `retrieve`, float32."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    log_decay: np.ndarray
    state: np.ndarray


class Expected(NamedTuple):
    """What the oracle says: values, and gradients of <dy, y> + <dstate, state>."""

    y: np.ndarray
    state: np.ndarray
    gradients: oracle.Gradients


class Question(NamedTuple):
    """Inputs, cotangents and the oracle's answer."""

    inputs: Inputs
    dy: np.ndarray
    dstate: np.ndarray
    expected: Expected


def draw_decay(random: np.random.Generator, shape: tuple[int, ...], decay: float | str):
    """log decay, float32 of shape [B, T, H], from a decay or the name of a mixture of them.

    smooth: what a trained gate gives, 0.9 to 1
    mixed:  every constant decay, each step drawn alone
    cliff:  a run of e^-60 per step, then 1 - 1e-5, where differences of sums lose their digits
    """
    if decay == "smooth":
        log_decay = -random.exponential(0.02, size=shape)
    elif decay == "mixed":
        gamma = random.choice([*CONSTANT_DECAYS, 0.9, 0.99, 0.999999], size=shape)
        log_decay = _log(gamma)
    elif decay == "cliff":
        log_decay = np.full(shape, np.log1p(-1e-5))
        log_decay[:, : max(1, shape[1] // 2)] = -60.0
    else:
        log_decay = _log(np.full(shape, decay))
    return log_decay.astype(np.float32)


def draw(
    is_complex: bool,
    time: int,
    dim: int,
    decay: float | str,
    batch: int = 2,
    heads: int = 2,
    seed: int = 0,
) -> tuple[Inputs, np.ndarray, np.ndarray]:
    """(inputs, dy, dstate), float32; queries are scaled by d^-1/2 as the layer does."""
    random = np.random.default_rng([seed, time, dim])
    planes = (2,) if is_complex else ()
    row, square = (batch, time, heads, *planes, dim), (batch, heads, *planes, dim, dim)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    log_decay = draw_decay(random, (batch, time, heads), decay)
    q = normal(row) * np.float32(dim**-0.5)
    inputs = Inputs(q, normal(row), normal(row), log_decay, normal(square))
    return inputs, normal(row), normal(square)


@lru_cache(maxsize=512)
def ask(is_complex: bool, time: int, dim: int, decay: float | str) -> Question:
    """Random inputs with the oracle's answer, computed once for all forms."""
    inputs, dy, dstate = draw(is_complex, time, dim, decay)
    return Question(inputs, dy, dstate, answer(inputs, dy, dstate))


def answer(inputs: Inputs, dy: np.ndarray, dstate: np.ndarray) -> Expected:
    """The oracle's values and gradients."""
    y, state = oracle.retrieve(*inputs)
    return Expected(y, state, oracle.retrieve_gradients(*inputs, dy, dstate))


def _log(gamma: np.ndarray) -> np.ndarray:
    """log gamma; the decays near 1 are exact, and 0 is -inf."""
    with np.errstate(divide="ignore"):
        return np.log(gamma)
