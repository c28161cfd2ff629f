"""H02: gradients are those of a float64 token loop, and no worse where the decay is small."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import oracle
import pytest
from drawing import answer, draw

from mlx_pam.ops.decay import log_decay
from mlx_pam.ops.retrieval import FORMS, retrieve

TIME, DIM = 48, 16
DECAYS = (0.999999, 0.99, 0.5, 0.1, 1e-3)
TOLERANCE = 1e-5  # for every decay, as it must not grow while they shrink


def question(decay: float | str):
    """Inputs and cotangents; "all" draws each step's decay from the five."""
    inputs, dy, dstate = draw(True, TIME, DIM, "smooth")
    choices = DECAYS if decay == "all" else (decay,)
    gamma = np.random.default_rng(6).choice(choices, size=inputs.log_decay.shape)
    return inputs._replace(log_decay=np.log(gamma).astype(np.float32)), dy, dstate


@pytest.mark.parametrize("decay", [*DECAYS, "all"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_the_token_loops_at_every_decay(backend, form, decay):
    inputs, dy, dstate = question(decay)
    expected = answer(inputs, dy, dstate)
    values, gradients = backend.retrieve_with_gradients(inputs, [dy, dstate], form, "float32")
    assert oracle.relative_error(values[0], expected.y) < TOLERANCE
    assert oracle.relative_error(values[1], expected.state) < TOLERANCE
    for name, gradient in zip(inputs._fields, gradients, strict=True):
        error = oracle.relative_error(gradient, getattr(expected.gradients, name))
        assert error < TOLERANCE, name


@pytest.mark.parametrize("decay", [*DECAYS, "all"])
@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_reaches_the_logit_that_the_layer_makes_the_decay_from(form, decay):
    """gamma = e^-softplus(s) with the gate shut, so d/ds is -sigmoid(s) d/dlog gamma."""
    inputs, dy, dstate = question(decay)
    logit = np.log(np.expm1(-inputs.log_decay.astype(np.float64))).astype(np.float32)
    inputs = inputs._replace(log_decay=-np.logaddexp(0, logit.astype(np.float64)))
    expected = answer(inputs, dy, dstate).gradients.log_decay * -1 / (1 + np.exp(-logit))

    def layer(logit):
        gate = mx.full(logit.shape, -40.0)
        q, k, v, state = (mx.array(x) for x in (*inputs[:3], inputs.state))
        return list(retrieve(q, k, v, log_decay(logit, gate), state, form=form))

    _, (gradient,) = mx.vjp(layer, [mx.array(logit)], [mx.array(dy), mx.array(dstate)])
    assert oracle.relative_error(gradient, expected) < TOLERANCE
