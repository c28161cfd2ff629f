"""Kernels that MLX starts for one step, counted in the step's own graph; no GPU is needed.

Every node of the compiled graph is a kernel but those that only look at an array in another way. A
concatenation copies each of its inputs. It is a lower bound: a product may take two kernels, and an
array may be copied first when a kernel cannot read it as it lies.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from mlx_pam.backend import get_backend
from mlx_pam.config import ModelConfig
from mlx_pam.decoder_state import state_shapes
from mlx_pam.models.decode import next_logits
from mlx_pam.ops.retrieval import retrieve

VIEWS = {
    "Broadcast", "CustomTransforms", "ExpandDims", "Flatten", "Reshape", "Slice", "Split",
    "Squeeze", "StopGradient", "Transpose", "Unflatten",
}  # fmt: skip
NODE = re.compile(r'(\w+) \[label ?= ?"(\w+)"')


def count(function: Callable[..., Sequence[mx.array]], *arrays: mx.array) -> int:
    """Kernels of function(*arrays), compiled."""
    mx.eval(*arrays)  # how they came to be does not count
    outputs = mx.compile(function)(*arrays)
    page = io.StringIO()
    mx.export_to_dot(page, *outputs)
    nodes = dict(NODE.findall(page.getvalue()))
    inputs = re.findall(r"-> (\w+)$", page.getvalue(), flags=re.MULTILINE)
    return sum(
        inputs.count(node) if kind == "Concatenate" else 1
        for node, kind in nodes.items()
        if kind not in VIEWS
    )


@functools.cache
def of_retrieval(form: str, time: int, backward: bool, d: int = 16) -> int:
    """Of the operator, forward or forward and backward, in the form that is named."""
    rows, square = (1, time, 1, 2, d), (1, 1, 2, d, d)
    shapes = [rows, rows, rows, rows[:3], square]
    inputs = [mx.zeros(shape) for shape in shapes]

    def forward(*arrays: mx.array) -> list[mx.array]:
        return list(retrieve(*arrays, form=form))

    def both(*arrays: mx.array) -> list[mx.array]:
        outputs, gradients = mx.vjp(forward, list(arrays[:5]), list(arrays[5:]))
        return [*outputs, *gradients]

    if not backward:
        return count(forward, *inputs)
    return count(both, *inputs, mx.zeros(rows), mx.zeros(square))


@functools.cache
def of_a_token(config: ModelConfig) -> int:
    """Of one decoded token; small sizes serve, for the graph depends on the depth alone."""
    small = dataclasses.replace(config, dim=64, num_heads=2, head_dim=16, vocab_size=64)
    model = get_backend("mlx").build(small)
    memories = [mx.zeros(shape) for shape in state_shapes(small, 1, 1).values()]

    def step(ids: mx.array, phases: mx.array, *memories: mx.array) -> list[mx.array]:
        logits, after = next_logits(model, ids, phases, list(memories))
        return [logits, *after]

    return count(step, mx.zeros((1, 1), mx.int32), model.phases(np.zeros((1, 1))), *memories)
