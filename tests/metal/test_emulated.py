"""What the emulator can see of the kernels and a GPU cannot: orders, offsets, barriers, memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from metal import emulator
from metal.fused_form import TOLERANCES, errors, fused, too_large

from mlx_pam.ops import metal
from mlx_pam.ops.metal import launch

emulator.require()

pytestmark = pytest.mark.kernels

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
FAR = f"{1 << 30}l"  # batches


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("schedule", ["reverse", "random"])
@pytest.mark.parametrize("time", [5, 40])
def test_threads_may_run_in_any_order(time, schedule, is_complex):
    with emulator.emulated(schedule=schedule):
        assert not too_large(errors(is_complex, time, 16, "mixed"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("dim", metal.WIDTHS)
def test_threads_of_every_kernel_may_run_in_any_order(dim, is_complex, dtype):
    for schedule in ("reverse", "random"):
        with emulator.emulated(schedule=schedule):
            for time in (5, 33, 70):
                found = errors(is_complex, time, dim, "mixed", dtype)
                assert not too_large(found, dtype), (schedule, time)


def all_kernels(is_complex: bool = True, dim: int = 64) -> dict[str, float]:
    """Errors with each kernel in use, and each of its loops more than once."""
    few = errors(is_complex, 5, dim, "mixed", heads=1)
    many = errors(is_complex, 40, dim, "mixed", heads=1)
    return {f"{name}, {time}": e for time, es in ((5, few), (40, many)) for name, e in es.items()}


def far_away(text: str) -> str:
    """The same launch on a later part of larger arrays: FAR batches in, which begin that far back.

    Offsets pass 2^32 in every array, and any that is computed in 32 bits points elsewhere.
    """
    name = kernel_of(text)
    signature = text.index("[[kernel]] void ")
    begin = text.index(") {\n", signature)
    body, batches = re.subn(r"(long batch = )", rf"\g<1>{FAR} + ", text[begin:])
    body, heads = re.subn(
        r"(long head = )(thread_position_in_grid.z)", rf"\g<1>{FAR} * H + \g<2>", body
    )
    assert batches + heads == 1
    rows, square = "T * H * PLANES * D", "H * PLANES * D * D"
    lengths = {"log_decay": "T * H", "dlog_decay": "T * H"}  # of a batch
    lengths |= dict.fromkeys(("state", "new_state", "first", "last"), square)
    lengths |= dict.fromkeys(("states", "adjoints"), f"n * {square}")
    inputs, outputs = launch.SIGNATURES[name]
    for array in (*inputs, *outputs):
        earlier = f"({array} - {FAR} * ({lengths.get(array, rows)}))"
        body = re.sub(rf"(?<!\.)\b{array}\b", earlier, body)
    return text[:begin] + body


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_offsets_pass_32_bits(is_complex):
    with emulator.emulated(mutate=far_away):
        assert not too_large(all_kernels(is_complex, dim=16))


def kernel_of(text: str) -> str:
    return next(name for name in launch.SIGNATURES if f"custom_kernel_mlx_pam_{name}_" in text)


def barriers() -> list[tuple[str, int]]:
    """Every barrier of every kernel: the kernel, and the barrier's number in its source."""
    shared = launch.text("tiles").count(BARRIER)
    of_kernel = {name: launch.text(name).count(BARRIER) for name in launch.SIGNATURES}
    found = [(name, shared + i) for name, count in of_kernel.items() for i in range(count)]
    users = [name for name in of_kernel if "add_scores" in launch.text(name)]
    return [*((name, i) for name in users for i in range(shared)), *found]


def without_barrier(name: str, number: int) -> Callable[[str], str]:
    """Takes one barrier out of one kernel, and leaves the others as they are."""

    def mutate(text: str) -> str:
        if kernel_of(text) != name:
            return text
        *before, after = text.split(BARRIER, number + 1)
        return BARRIER.join(before) + after

    return mutate


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), barriers())
def test_no_barrier_is_there_for_nothing(name, number):
    """Without it, some order of the threads reads what is not yet there, or no longer."""
    with (
        emulator.emulated(mutate=without_barrier(name, number)),
        pytest.raises(emulator.EmulationError),
    ):
        all_kernels()


SANITIZED = """
from metal.emulator import emulated
from metal.fused_form import too_large
from metal.test_emulated import all_kernels

for is_complex, dim in ((True, 64), (False, 24)):
    with emulated(schedule="random", sanitize={sanitize!r}) as launches:
        assert not too_large(all_kernels(is_complex, dim))
    assert {{launch.name for launch in launches}} == {names!r}
"""


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitize):
    names = {f"mlx_pam_{name}" for name in launch.SIGNATURES}
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED.format(sanitize=sanitize, names=names)],
        env=emulator.sanitizer_environment(sanitize),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_what_makes_another_source_makes_another_name():
    """MLX keeps one compiled source a name: two under one would take each other's place again."""
    sources = []
    for dtype in TOLERANCES:
        for planes in ((2,), ()):
            for batch, time in ((1, 1), (1, 5), (2, 40)):
                arrays = [mx.zeros((batch, time, 2, *planes, 16), dtype) for _ in "qkv"]
                arrays.append(mx.zeros((batch, time, 2)))
                arrays.append(mx.zeros((batch, 2, *planes, 16, 16)))
                sources += emulator.generated_sources(_with_gradients, *arrays)
    by_name = {re.search(r"void (custom_kernel_\w+)\(", text)[1] for text in sources}
    assert len(by_name) == len(set(sources))


def _with_gradients(*arrays: mx.array) -> list[mx.array]:
    outputs, gradients = mx.vjp(fused, list(arrays), [arrays[0], arrays[4]])
    return [*outputs, *gradients]


@pytest.mark.parametrize("name", ["tiles", *launch.SIGNATURES])
def test_sources_are_what_mlx_can_hand_to_metal(name):
    """ASCII, and lines that can be read."""
    text = launch.text(name)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("\n") < 300
