"""The oracle's own proofs: its adjoint recursion against central finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import Gradients, relative_error, retrieve, retrieve_gradients


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("argument", Gradients._fields)
def test_adjoint_recursion_is_the_finite_difference(is_complex, argument):
    random = np.random.default_rng(3)
    batch, time, heads, dim = 2, 5, 2, 3
    planes = (2,) if is_complex else ()
    inputs = {name: random.normal(size=(batch, time, heads, *planes, dim)) for name in "qkv"}
    inputs["log_decay"] = -random.exponential(size=(batch, time, heads))
    inputs["state"] = random.normal(size=(batch, heads, *planes, dim, dim))
    dy = random.normal(size=inputs["q"].shape)
    dstate = random.normal(size=inputs["state"].shape)

    def loss() -> float:
        y, state = retrieve(**inputs)
        return float(np.sum(dy * y) + np.sum(dstate * state))

    found = getattr(retrieve_gradients(**inputs, dy=dy, dstate=dstate), argument)
    expected = np.zeros_like(inputs[argument])
    step = 1e-6
    for index in np.ndindex(expected.shape):
        kept = inputs[argument][index]
        inputs[argument][index] = kept + step
        above = loss()
        inputs[argument][index] = kept - step
        below = loss()
        inputs[argument][index] = kept
        expected[index] = (above - below) / (2 * step)
    assert relative_error(found, expected) < 1e-7


def test_a_decay_of_zero_forgets_and_has_no_gradient():
    random = np.random.default_rng(4)
    q, k, v = random.normal(size=(3, 1, 6, 1, 2, 4))
    log_decay = np.full((1, 6, 1), -0.1)
    log_decay[:, 3] = -np.inf
    state = random.normal(size=(1, 1, 2, 4, 4))
    y, final = retrieve(q, k, v, log_decay, state)
    late, alone = retrieve(q[:, 3:], k[:, 3:], v[:, 3:], log_decay[:, 3:], None)
    assert np.array_equal(y[:, 3:], late)
    assert np.array_equal(final, alone)
    dy = np.zeros_like(y)
    dy[:, 3:] = 1.0
    gradients = retrieve_gradients(q, k, v, log_decay, state, dy, np.ones_like(final))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not gradients.log_decay[:, :4].any()
    assert not gradients.state.any()
    assert not gradients.k[:, :3].any()


def test_one_complex_write_is_read_with_the_conjugate_key():
    """y = v conj(k) q, the three numbers written out by hand: (1+2i)(3-i)^*(2+i)."""
    one = {"q": [[2.0], [1.0]], "k": [[3.0], [-1.0]], "v": [[1.0], [2.0]]}
    arrays = {name: np.array(planes).reshape(1, 1, 1, 2, 1) for name, planes in one.items()}
    y, _ = retrieve(**arrays, log_decay=np.zeros((1, 1, 1)))
    assert y.ravel().tolist() == [-5.0, 15.0]  # (1+2i)(3+i) = 1+7i; (1+7i)(2+i) = -5+15i
