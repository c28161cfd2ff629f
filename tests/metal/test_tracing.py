"""The graph that MLX traces, with its own kernels and no data: what it will run on a Mac.

A custom function that reads an array from outside its arguments has, silently, no gradient for it,
and one that looks at numbers cannot be compiled. Neither would show in the emulator alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import mlx.core as mx
import pytest
from drawing import Inputs, draw

from mlx_pam.ops import metal
from mlx_pam.ops.metal import launch
from mlx_pam.ops.retrieval import retrieve

ORIGIN = Inputs(*["chunk_gradients"] * 4, "chunk_states")  # of the gradient of each


class Graph(NamedTuple):
    """A traced function: what it is given, what it gives, and what happens in between."""

    inputs: list[str]
    outputs: list[str]
    constants: list[mx.array]
    nodes: list[dict]

    def origin(self, name: str) -> dict:
        """The node that an array comes from."""
        return next(node for node in self.nodes if name in _names(node["outputs"]))

    def ancestors(self, name: str) -> set[str]:
        """All arrays that it is computed from."""
        if name in self.inputs or not any(name in _names(n["outputs"]) for n in self.nodes):
            return {name}
        parents = _names(self.origin(name)["inputs"])
        return {name}.union(*(self.ancestors(parent) for parent in parents))

    def kernels(self) -> list[str]:
        """Names of the Metal kernels, in order."""
        return [kernel_of(node) for node in self.nodes if node["name"] == "CustomKernel"]


def kernel_of(node: dict) -> str:
    """The name in `launch.SIGNATURES` of a kernel in a graph."""
    assert node["name"] == "CustomKernel"
    text = str(node["arguments"])
    return next(name for name in launch.SIGNATURES if f"mlx_pam_{name}" in text)


def _names(arrays: list[tuple]) -> list[str]:
    return [name for name, *_ in arrays]


def trace(function: Callable, *arrays: mx.array) -> Graph:
    """What MLX sees of a function when it compiles or exports it: shapes and types alone."""
    graph = Graph([], [], [], [])

    def note(part: dict) -> None:
        if part["type"] == "primitive":
            graph.nodes.append(part)
        elif part["type"] == "inputs":
            graph.inputs.extend(_names(part["inputs"]))
        elif part["type"] == "outputs":
            graph.outputs.extend(_names(part["outputs"]))
        elif part["type"] == "constants":
            graph.constants.extend(array for _, array in part["constants"])

    mx.export_function(note, function, *arrays)
    return graph


@pytest.fixture
def real_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels as MLX makes them, compiled functions as such: to be looked at, not run."""
    monkeypatch.setattr(metal, "available", lambda: True)
    launch.build.cache_clear()
    mx.enable_compile()
    yield
    mx.disable_compile()  # as in every other test
    launch.build.cache_clear()


def gradients(arrays: list[mx.array], *cotangents: mx.array) -> list[mx.array]:
    """Of all five inputs, for a loss that is linear in both outputs."""

    def loss(*primals):
        outputs = retrieve(*primals)
        return sum((x * dx).sum() for x, dx in zip(outputs, cotangents, strict=True))

    return mx.grad(loss, argnums=range(5))(*arrays)


def question(is_complex: bool, time: int) -> list[mx.array]:
    inputs, dy, dstate = draw(is_complex, time, 16, "smooth")
    return [mx.array(x) for x in (*inputs, dy, dstate)]


@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize("transform", [lambda f: f, mx.compile], ids=["plain", "compiled"])
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("time", [1, 40])
def test_every_gradient_comes_from_a_kernel_that_sees_every_input(time, is_complex, transform):
    def all_five(*arrays):
        return gradients(list(arrays[:5]), *arrays[5:])

    graph = trace(transform(all_five), *question(is_complex, time))
    assert graph.kernels() == ["chunk_states", "chunk_states", "chunk_gradients"]
    *inputs, dy, dstate = graph.inputs
    q, k, v, log_decay, state = inputs
    everything = {q, k, v, log_decay, state, dy, dstate}
    sees = Inputs(  # what stands in the derivative by each of them; it is linear in q and state
        everything - {q, dstate}, everything - {k}, everything - {v}, everything,
        {q, log_decay, dy, dstate},
    )  # fmt: skip
    for kernel, seen, output in zip(ORIGIN, sees, graph.outputs, strict=True):
        assert kernel_of(graph.origin(output)) == kernel
        assert seen <= graph.ancestors(output)


@pytest.mark.usefixtures("real_kernels")
def test_no_array_is_taken_from_outside_the_arguments():
    """It would be a constant of the graph; those there are stand for python's numbers."""

    def all_five(*arrays):
        return gradients(list(arrays[:5]), *arrays[5:])

    graph = trace(all_five, *question(True, 40))
    assert max((math.prod(x.shape) for x in graph.constants), default=0) <= 1


@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize(
    ("time", "kernels"), [(1, ["token_steps"]), (40, ["chunk_states", "chunk_outputs"])]
)
def test_the_forward_pass_starts_as_few_kernels_as_it_can(time, kernels):
    def forward(*arrays):  # the custom function itself is a box that MLX does not open
        return metal.operator.forward(*arrays)

    assert trace(forward, *question(True, time)[:5]).kernels() == kernels
