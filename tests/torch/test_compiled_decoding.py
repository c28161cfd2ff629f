"""A transformer's compiled step leaves its cache where it lies, and serves every length of it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mlx_pam.backend import get_backend  # noqa: E402
from mlx_pam.config import TransformerConfig  # noqa: E402
from mlx_pam.decoder_state import state_shapes  # noqa: E402
from mlx_pam.torch.ops import fusing  # noqa: E402

CONFIG = TransformerConfig(dim=32, num_layers=2, num_heads=2, head_dim=16, vocab_size=61)
CONTEXT = 777  # a length that nothing else has
CACHE_NUMBERS = 2 * CONTEXT * 16  # far more than a weight has


def decoder_at(context: int, tokens: int, config=CONFIG):
    backend = get_backend("torch")
    decoder = backend.Decoder(backend.build(config, seed=3), tokens)
    shapes = state_shapes(config, 1, context)
    state = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    decoder.restore(state | {"positions": np.array([context])})
    return decoder


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list:
    """Every graph that is handed to a compiler, which here runs it as it is."""
    found: list = []

    def keep(graph, _):
        found.append(graph)
        return graph

    torch._dynamo.reset()
    monkeypatch.setattr(fusing, "can_compile", lambda _: True)
    monkeypatch.setattr("mlx_pam.torch.runtime.can_compile", lambda _: True)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=keep))
    with torch._dynamo.config.patch(disable=False):
        yield found
    torch._dynamo.reset()


def largest(graph) -> int:
    """Numbers in the largest tensor that a graph is given or makes."""
    values = (node.meta.get("example_value") for node in graph.graph.nodes)
    return max(int(x.numel()) for x in values if isinstance(x, torch.Tensor))


def test_no_compiled_graph_has_the_cache_in_it(graphs) -> None:
    decoder = decoder_at(CONTEXT, 10**6)
    decoder.step(np.zeros(1, np.int64))
    assert len(graphs) >= 2  # before and after the attention
    assert max(map(largest, graphs)) < CACHE_NUMBERS


def test_a_longer_cache_is_no_new_shape_to_compile_for(graphs) -> None:
    decoder = decoder_at(CONTEXT, 10**6)
    decoder.step(np.zeros(1, np.int64))
    compiled = len(graphs)
    for _ in range(12):
        decoder.step(np.zeros(1, np.int64))
    assert len(graphs) == compiled


@pytest.mark.parametrize("tokens", [0, 10**6])
def test_a_step_writes_into_the_cache_where_it_lies(tokens, graphs) -> None:
    decoder = decoder_at(CONTEXT, tokens)
    decoder.step(np.zeros(1, np.int64))
    places = [memory.data_ptr() for memory in decoder._memories]
    decoder.step(np.zeros(1, np.int64))
    assert [memory.data_ptr() for memory in decoder._memories] == places


def test_compiled_and_eager_steps_give_the_same_logits(graphs) -> None:
    eager, compiled = (decoder_at(CONTEXT, tokens) for tokens in (0, 10**6))
    for token in (3, 1, 4, 1):
        expected = eager.step(np.array([token]))
        np.testing.assert_allclose(compiled.step(np.array([token])), expected, atol=1e-6)


ALLOCATED = """
import json, sys, numpy as np, torch
from torch.profiler import ProfilerActivity, profile
sys.path.insert(0, {tests!r})
from test_compiled_decoding import decoder_at
found = []
for tokens in (0, 10**6):
    decoder = decoder_at({context}, tokens)
    for _ in range(3):
        decoder.step(np.zeros(1, np.int64))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        decoder.step(np.zeros(1, np.int64))
    found.append(max(event.cpu_memory_usage for event in record.events()))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_compiled_step_takes_no_more_memory_than_an_eager_one() -> None:
    if not fusing.can_compile("cpu"):
        pytest.skip("needs a C++ compiler")
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_COMPILE_DISABLE"}
    script = ALLOCATED.format(tests=str(Path(__file__).parent), context=20_000)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    eager, compiled = json.loads(done.stdout.splitlines()[-1])
    assert compiled <= eager + 100_000  # one array of the cache has 2.5 MB
