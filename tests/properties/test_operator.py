"""The memory over any sequence, in any pieces and forms, is the token loop, in every backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import oracle
import pytest
from drawing import CONSTANT_DECAYS, Inputs, draw
from hypothesis import given
from hypothesis import strategies as some
from properties.examples import examples

TOLERANCE = 1e-5  # relative to the largest entry, float32
FORMS = ("recurrent", "parallel", "chunkwise", "auto")

Piece = Callable[..., tuple[np.ndarray, np.ndarray]]

decays = some.sampled_from(("smooth", "mixed", "cliff", *CONSTANT_DECAYS)) | some.floats(0, 1)
pieces = some.lists(some.tuples(some.floats(0, 1), some.sampled_from(FORMS)), max_size=5)
shapes = some.tuples(  # time, dim, batch, heads
    some.integers(1, 140),
    some.sampled_from((1, 3, 8, 16)),
    some.integers(1, 3),
    some.integers(1, 3),
)


def mlx_piece(*arrays: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    mx = importlib.import_module("mlx.core")
    from mlx_pam.ops.retrieval import retrieve

    y, state = retrieve(*map(mx.array, arrays), form=form)
    return np.array(y), np.array(state)


def torch_piece(*arrays: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    torch = pytest.importorskip("torch")
    from mlx_pam.torch.ops.retrieval import retrieve

    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    with torch.no_grad():
        y, state = retrieve(*tensors, form=form)
    return y.numpy(), state.numpy()


def in_pieces(inputs: Inputs, cuts: list[tuple[float, str]], turns: list[Piece]):
    """The sequence cut in pieces, each in a form of its own, by backends that take turns."""
    time = inputs.q.shape[1]
    places = sorted({0, time} | {round(where * time) for where, _ in cuts})
    forms = [form for _, form in cuts] or ["chunkwise"]
    state, parts = inputs.state, []
    for number, (start, stop) in enumerate(pairwise(places)):
        rows = [x[:, start:stop] for x in inputs[:4]]
        piece = turns[number % len(turns)]
        y, state = piece(*rows, state, form=forms[number % len(forms)])
        parts.append(y)
    return np.concatenate(parts, axis=1), state


@pytest.mark.parametrize("turns", [[mlx_piece], [torch_piece], [mlx_piece, torch_piece]],
                         ids=["mlx", "torch", "in turns"])  # fmt: skip
@examples(40)
@given(shapes, some.booleans(), decays, pieces, some.integers(0, 99))
def test_any_pieces_are_the_token_loop(turns, shape, is_complex, decay, cuts, seed):
    time, dim, batch, heads = shape
    inputs, *_ = draw(is_complex, time, dim, decay, batch, heads, seed)
    expected, expected_state = oracle.retrieve(*inputs)
    y, state = in_pieces(inputs, cuts, turns)
    assert oracle.relative_error(y, expected) < TOLERANCE
    assert oracle.relative_error(state, expected_state) < TOLERANCE


@pytest.mark.parametrize("piece", [mlx_piece, torch_piece])
@examples(40)
@given(shapes, some.booleans(), some.floats(1e-4, 1), some.integers(0, 99))
def test_chunks_are_the_recurrence_at_any_decay(piece, shape, is_complex, gamma, seed):
    time, dim, batch, heads = shape
    inputs, *_ = draw(is_complex, time, dim, gamma, batch, heads, seed)
    one, last = piece(*inputs, form="recurrent")
    other, other_last = piece(*inputs, form="chunkwise")
    assert oracle.relative_error(other, one) < TOLERANCE
    assert oracle.relative_error(other_last, last) < TOLERANCE
