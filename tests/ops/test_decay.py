"""log gamma is exact where gamma is near 1 and where it is near 0, with finite gradients."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.ops.decay import log_decay, write_strength

DT = [1e-8, 1e-6, 1e-4, 0.018, 0.3, 0.69, 0.7, 1.0, 1.4, 5.0, 20.0, 100.0, 1000.0]
GATE = [-80.0, -40.0, -17.0, -10.0, -3.0, -0.5, 0.0, 0.5, 3.0, 10.0, 17.0, 40.0, 80.0]


def logits() -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a step dt (as the logit of its softplus) and a gate logit, float32."""
    decay = [*np.log(np.expm1(DT[:-1])), DT[-1]]  # the last is its own logit
    pairs = np.array([(s, a) for s in decay for a in GATE], np.float32)
    return pairs[:, 0], pairs[:, 1]


def exact(decay_logit: np.ndarray, gate_logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log gamma, 1 - p) of [n] decay logits and [n, c] gate logits, in extended precision."""
    s, a = decay_logit.astype(np.longdouble)[:, None], gate_logit.astype(np.longdouble)
    dt = softplus(s)
    write, protect = 1 / (1 + np.exp(a)), 1 / (1 + np.exp(-a))
    loss = (write * np.expm1(-dt)).mean(axis=-1)  # gamma - 1
    gamma = (np.exp(-dt) * write + protect).mean(axis=-1)
    with np.errstate(divide="ignore"):
        return np.where(loss > -0.5, np.log1p(loss), np.log(gamma)), write


def found(decay_logit: np.ndarray, gate_logit: np.ndarray) -> np.ndarray:
    return np.array(log_decay(mx.array(decay_logit)[None, None], mx.array(gate_logit)[None, None]))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest error relative to each entry, not to the largest one."""
    return float(np.max(np.abs(found - expected) / np.abs(expected)))


def test_the_gate_per_head_is_exact_at_both_ends():
    s, a = logits()
    expected, _ = exact(s, a[:, None])
    assert expected.max() > -1e-40  # gamma reaches 1 beyond float32's own digits
    assert expected.min() < -70
    representable = expected < -1e-37
    assert relative(found(s, a)[0, 0][representable], expected[representable]) < 2e-6


@pytest.mark.parametrize("spread", [0.0, 0.1, 30.0])
def test_the_gate_per_channel_is_exact_at_both_ends(spread):
    s, a = logits()
    random = np.random.default_rng(0)
    channels = (a[:, None] + spread * random.normal(size=(a.size, 16))).astype(np.float32)
    expected, _ = exact(s, channels)
    representable = expected < -1e-37
    assert relative(found(s, channels)[0, 0][representable], expected[representable]) < 2e-6


def test_equal_channels_are_the_gate_of_the_head():
    s, a = logits()
    channels = np.repeat(a[:, None], 8, axis=-1)
    assert np.allclose(found(s, channels), found(s, a), rtol=2e-6, atol=0)


def test_log_gamma_is_never_positive_and_never_nan():
    extreme = np.array([-1e30, -1e4, -200, -50, 0, 50, 200, 1e4, 1e30], np.float32)
    s, a = (grid.ravel() for grid in np.meshgrid(extreme, extreme))
    for gate in (a, np.repeat(a[:, None], 4, axis=-1)):
        log_gamma = found(s, gate)
        assert not np.isnan(log_gamma).any()
        assert (log_gamma <= 0).all()


def test_half_precision_logits_give_float32_decays():
    s, a = mx.array([[[-4.0, 1.0]]]), mx.array([[[-3.0, 2.0]]])
    half = log_decay(s.astype(mx.bfloat16), a.astype(mx.bfloat16))
    assert half.dtype == mx.float32
    assert np.array_equal(np.array(half), np.array(log_decay(s, a)))


@pytest.mark.parametrize("channels", [None, 4])
def test_gradients_are_exact_and_finite_at_both_ends(channels):
    """d log gamma / d dt = -(1-p) e^-dt / gamma; d log gamma / da = p (1-p) (1-e^-dt) / gamma."""
    s, a = logits()
    gate = a if channels is None else np.repeat(a[:, None], channels, axis=-1)
    _, (ds, da) = mx.vjp(
        log_decay,
        [mx.array(s)[None, None], mx.array(gate)[None, None]],
        [mx.ones((1, 1, s.size))],
    )
    ds, da = np.array(ds)[0, 0], np.array(da)[0, 0]
    da = da if channels is None else da.sum(axis=-1)
    s, a = s.astype(np.longdouble), a.astype(np.longdouble)
    log_gamma, _ = exact(s, a[:, None])
    dt, log_write, log_protect = softplus(s), -softplus(a), -softplus(-a)
    by_dt = -np.exp(log_write - dt - log_gamma)
    by_gate = -np.exp(log_write + log_protect - log_gamma) * np.expm1(-dt)
    by_decay = by_dt / (1 + np.exp(-s))
    assert np.allclose(ds, by_decay, rtol=2e-5, atol=1e-7)
    assert np.allclose(da, by_gate, rtol=2e-5, atol=1e-7)
    # where a gate works, each digit counts: it must be able to leave gamma = 1 again
    decays, protects = dt < 6, a >= -3
    assert np.allclose(ds[decays], by_decay[decays], rtol=2e-5, atol=1e-37)
    assert np.allclose(da[protects], by_gate[protects], rtol=2e-5, atol=1e-37)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def test_what_is_written_is_one_minus_the_gate_down_to_its_smallest():
    a = np.array(GATE, np.float32)
    expected = 1 / (1 + np.exp(a.astype(np.longdouble)))
    assert relative(np.array(write_strength(mx.array(a))), expected) < 2e-6
