"""The fused form on random inputs, and how far it is from the oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import oracle
from drawing import Inputs, answer, draw

from mlx_pam.ops.metal import operator
from mlx_pam.ops.retrieval import retrieve

Function = Callable[..., tuple[mx.array, mx.array]]

FLOAT32 = 1e-5  # relative to the largest entry, of values and gradients
# halves are rounded once, when they are written: by half a unit in the last place
TOLERANCES = {
    mx.float32: FLOAT32,
    mx.float16: FLOAT32 + 2.0**-11,
    mx.bfloat16: FLOAT32 + 2.0**-8,
}


class Found(NamedTuple):
    """y, final state and gradients of <dy, y> + <dstate, final state>, in float32."""

    y: np.ndarray
    state: np.ndarray
    gradients: oracle.Gradients


def fused(*arrays: mx.array) -> tuple[mx.array, mx.array]:
    """The form as a user asks for it."""
    return retrieve(*arrays, form="fused")


@mx.custom_function
def in_chunks(*arrays: mx.array) -> tuple[mx.array, mx.array]:
    """The chunk kernels at any length, also where the form would go token by token."""
    return operator.in_chunks(*arrays)


in_chunks.vjp(operator.backward)


def in_pieces(cuts: tuple[int, ...]) -> Function:
    """The form over pieces of a sequence, each of which hands its state to the next."""

    def pieces(*arrays):
        *rows, state = arrays
        outputs, edges = [], [0, *cuts, rows[0].shape[1]]
        for start, stop in pairwise(edges):
            y, state = fused(*(x[:, start:stop] for x in rows), state)
            outputs.append(y)
        return mx.concatenate(outputs, axis=1), state

    return pieces


def find(
    inputs: Inputs,
    dy: np.ndarray,
    dstate: np.ndarray,
    dtype: mx.Dtype = mx.float32,
    function: Function = fused,
) -> Found:
    """Values, and gradients by `mx.vjp`, with q, k, v and dy in dtype."""
    *primals, dy, dstate = typed(inputs, dy, dstate, dtype)
    (y, state), gradients = mx.vjp(function, primals, [dy, dstate])
    outputs = [y, state, *gradients]
    expected = [dtype, mx.float32, dtype, dtype, dtype, mx.float32, mx.float32]
    assert [x.dtype for x in outputs] == expected
    y, state, *gradients = map(numpy, outputs)
    return Found(y, state, oracle.Gradients(*gradients))


def values(inputs: Inputs, function: Function = fused) -> tuple[np.ndarray, np.ndarray]:
    """y and the final state."""
    y, state = function(*map(mx.array, inputs))
    return np.array(y), np.array(state)


def errors(
    is_complex: bool,
    time: int,
    dim: int,
    decay: float | str,
    dtype: mx.Dtype = mx.float32,
    function: Function = fused,
    batch: int = 1,
    heads: int = 2,
) -> dict[str, float]:
    """Relative errors by name, on random inputs as dtype holds them."""
    inputs, dy, dstate = draw(is_complex, time, dim, decay, batch, heads)
    rounded = [numpy(x) for x in typed(inputs, dy, dstate, dtype)]
    inputs, dy = Inputs(*rounded[:5]), rounded[5]
    return differences(find(inputs, dy, dstate, dtype, function), answer(inputs, dy, dstate))


def differences(found: Found, expected) -> dict[str, float]:
    """Relative errors by name: y, final state, and the gradient of each input."""
    named = {"y": (found.y, expected.y), "S_T": (found.state, expected.state)}
    for name in oracle.Gradients._fields:
        pair = getattr(found.gradients, name), getattr(expected.gradients, name)
        named[f"gradient of {name}"] = pair
    return {name: oracle.relative_error(*pair) for name, pair in named.items()}


def too_large(errors: dict[str, float], dtype: mx.Dtype = mx.float32) -> dict[str, float]:
    """Those above the tolerance of a type; states and decays are float32 whatever the type."""
    exact = ("S_T", "gradient of log_decay", "gradient of state")
    tolerances = {name: FLOAT32 if name in exact else TOLERANCES[dtype] for name in errors}
    return {name: error for name, error in errors.items() if not error <= tolerances[name]}


def typed(inputs: Inputs, dy: np.ndarray, dstate: np.ndarray, dtype: mx.Dtype) -> list[mx.array]:
    """q, k, v, log_decay, state, dy, dstate, with q, k, v and dy in dtype."""
    arrays = [mx.array(x) for x in (*inputs, dy, dstate)]
    return [x.astype(dtype) if i in (0, 1, 2, 5) else x for i, x in enumerate(arrays)]


def numpy(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32))
