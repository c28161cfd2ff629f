"""What the emulator and MLX's tracer can see of decoding in kernels, and a GPU cannot."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
import oracle
import pytest
from metal.one_token import CONFIGS, MLX, one_step
from metal.test_tracing import real_kernels, trace  # noqa: F401 - a fixture

from mlx_pam.decoder_state import state_shapes
from mlx_pam.models.decode import next_logits
from mlx_pam.ops.metal import launch
from mlx_pam.ops.metal.decode import SIGNATURES

emulator = pytest.importorskip("metal.emulator")
emulator.require()

pytestmark = pytest.mark.kernels

FAR = f"{1 << 32}l"  # rows of the table


def test_no_bit_depends_on_the_order_of_the_threads():
    config, found = CONFIGS["PAM, a gate per channel"], []
    for schedule in ("forward", "reverse", "random"):
        with emulator.emulated(schedule=schedule):
            found.append(one_step(config, texts=1))
    for logits, state in found[1:]:
        np.testing.assert_array_equal(logits, found[0][0])
        for name, array in state.items():
            np.testing.assert_array_equal(array, found[0][1][name], err_msg=name)


def far_away(text: str) -> str:
    """The same table, as if it were the end of one whose rows pass 2^32."""
    begin = text.index("[[kernel]] void ")
    body = re.sub(r"\blong\((?=min|ids)", f"({FAR} + ", text[begin:])
    body = re.sub(r"= table\b|, table\b", rf"\g<0> - {FAR} * (PLANES * N)", body)
    assert (body == text[begin:]) == ("table" not in text)
    return text[:begin] + body


def test_a_vocabulary_may_pass_32_bits():
    config = CONFIGS["PAM"]
    with emulator.emulated():
        expected, _ = one_step(config, texts=3)
    with emulator.emulated(mutate=far_away):
        found, _ = one_step(config, texts=3)
    np.testing.assert_array_equal(found, expected)


SANITIZED = """
from metal.emulator import emulated
from metal.one_token import CONFIGS, one_step

for config in CONFIGS.values():
    with emulated(schedule="random", sanitize={sanitize!r}) as launches:
        one_step(config, texts=3)
    assert {{launch.name for launch in launches}} == {names!r}
"""


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitize):
    names = {f"mlx_pam_{name}" for name in SIGNATURES}
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED.format(sanitize=sanitize, names=names)],
        env=emulator.sanitizer_environment(sanitize),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def arguments(config, model, texts: int) -> list[mx.array]:
    """ids, phases and memories."""
    memories = [mx.zeros(shape) for shape in state_shapes(config, texts, 1).values()]
    return [mx.zeros((texts, 1), mx.int32), model.phases(np.zeros((texts, 1))), *memories]


@pytest.mark.parametrize("transform", [lambda f: f, mx.compile], ids=["plain", "compiled"])
@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_token_is_five_kernels_a_layer_and_three_more_and_nothing_else(config, transform):
    for layers in (1, 3):
        config = dataclasses.replace(config, num_layers=layers)
        model = MLX.build(config)

        def step(ids, phases, *memories, model=model):
            logits, after = next_logits(model, ids, phases, list(memories))
            return [logits, *after]

        graph = trace(transform(step), *arguments(config, model, texts=2))
        assert {node["name"] for node in graph.nodes} == {"CustomKernel"}
        kernels = Counter(
            next(name for name in SIGNATURES if f"mlx_pam_{name}" in str(node["arguments"]))
            for node in graph.nodes
        )
        assert kernels == {
            "decode_embedding": 1, "decode_unit": layers, "decode_product": 2 * layers + 1,
            "decode_projections": layers, "decode_memory": layers, "decode_logits": 1,
        }  # fmt: skip


def test_what_makes_another_source_makes_another_name():
    """MLX keeps one compiled source a name: two under one would take each other's place again."""
    sources = []
    for config in CONFIGS.values():
        for heads, texts, dtype in ((1, 1, mx.float32), (3, 3, mx.bfloat16), (8, 8, mx.float16)):
            config = dataclasses.replace(config, num_heads=heads)
            model = MLX.build(config)
            model.set_dtype(dtype)

            def step(ids, phases, *memories, model=model):
                return next_logits(model, ids, phases, list(memories))[0]

            sources += emulator.generated_sources(step, *arguments(config, model, texts))
    by_name = {re.search(r"void (custom_kernel_\w+)\(", text)[1] for text in sources}
    assert len(by_name) == len(set(sources)) > 60


def test_a_fault_in_a_kernel_shows():
    """The emulator runs what is written: without its sine the step is another one."""
    config = CONFIGS["PAM"]
    with emulator.emulated():
        expected, _ = one_step(config, texts=3)
    with emulator.emulated(mutate=lambda text: text.replace("sine = phases[j + W]", "sine = 0.0f")):
        found, _ = one_step(config, texts=3)
    assert oracle.relative_error(found, expected) > 1e-3


@pytest.mark.parametrize("name", ["decode_rows", *SIGNATURES])
def test_sources_are_what_mlx_can_hand_to_metal(name):
    """ASCII, and lines that can be read."""
    text = launch.text(name)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
