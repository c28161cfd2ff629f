"""What every form of the memory does at a decay of 0 and just below 1: facts that tests share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracle
import pytest
from drawing import Inputs, draw

Values = Callable[[Inputs], tuple[np.ndarray, np.ndarray]]
"""Inputs -> y and the final state."""
GradientsOf = Callable[[Inputs, np.ndarray, np.ndarray], oracle.Gradients]
"""Inputs, dy, dstate -> gradients of <dy, y> + <dstate, state>."""


def assert_a_zero_decay_forgets(is_complex: bool, values: Values, gradients_of: GradientsOf):
    """Nothing before a gamma of 0 touches what comes at it and after, in values and gradients."""
    time, zero = 90, 41
    inputs, dy, dstate = draw(is_complex, time, 16, "mixed")
    inputs.log_decay[:, zero] = -np.inf
    other = Inputs(*(x.copy() for x in inputs))
    for x in other[:3]:
        x[:, :zero] *= -1e4
    other.log_decay[:, :zero] = -0.5
    other.state[:] = 1e4
    y, state = values(inputs)
    other_y, other_state = values(other)
    assert not np.array_equal(y[:, :zero], other_y[:, :zero])
    assert np.array_equal(y[:, zero:], other_y[:, zero:])
    assert np.array_equal(state, other_state)

    dy[:, :zero] = 0  # a loss that looks at the time since the zero only
    gradients = gradients_of(inputs, dy, dstate)
    for name in ("q", "k", "v", "log_decay"):
        gradient = getattr(gradients, name)
        assert not gradient[:, :zero].any(), name
        assert np.isfinite(gradient).all(), name
    assert not gradients.log_decay[:, zero].any()
    assert not gradients.state.any()


def assert_a_decay_just_below_one_carries(is_complex: bool, values: Values, tolerance: float):
    """A write is carried over 2048 steps of gamma = 1 - 1e-5, to a relative tolerance."""
    time, dim = 2048, 8
    planes = (2,) if is_complex else ()
    arrays = [np.zeros((1, time, 1, *planes, dim), np.float32) for _ in "qkv"]
    q, k, v = (x.reshape(time, -1) for x in arrays)  # views
    k[0, 0] = v[0, 0] = 1.0
    q[:, 0] = 1.0
    log_decay = np.full((1, time, 1), np.log1p(-1e-5), np.float32)
    state = np.zeros((1, 1, *planes, dim, dim), np.float32)
    state.flat[0] = 1.0
    y, final = values(Inputs(*arrays, log_decay, state))
    after = (1 - 1e-5) ** np.arange(1, time + 1)
    expected = after + after / (1 - 1e-5)  # the state before, and the first token's write
    assert after[-1] == pytest.approx(0.980, abs=5e-4)
    assert y.reshape(time, -1)[:, 0] == pytest.approx(expected, rel=tolerance)
    assert final.flat[0] == pytest.approx(expected[-1], rel=tolerance)


def assert_a_slow_decay_has_no_bias(is_complex: bool, values: Values):
    """A step errs as often up as down, over many entries: met a million times, it does not drift.

    The decay lies half-way between two float32, where its rounding is off by 3e-8 at every step.
    """
    dim, log_decay = 32, np.float32(-9.030192e-06)
    planes = (2,) if is_complex else ()
    nothing = [np.zeros((2, 1, 4, *planes, dim), np.float32) for _ in "qkv"]
    state = np.random.default_rng(7).normal(size=(2, 4, *planes, dim, dim)).astype(np.float32)
    _, final = values(Inputs(*nothing, np.full((2, 1, 4), log_decay), state))
    ratio = np.asarray(final, np.float64) / state
    assert ratio.mean() == pytest.approx(np.exp(np.float64(log_decay)), abs=3e-9)
