"""What the emulator replaces, what it hands back, and how it says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from metal import emulator
from metal.emulator import build, environment
from metal.emulator.planted import KERNELS
from metal.emulator.source import Source
from metal.emulator.trial import trial

from mlx_pam.ops import metal
from mlx_pam.ops.metal import launch

emulator.require()
pytestmark = pytest.mark.kernels

ADD = "y[thread_position_in_grid.x] = x[thread_position_in_grid.x] + T(N);"


def add(x: mx.array, **template) -> np.ndarray:
    template = {"T": mx.float32, "N": 3, **template}
    return trial(ADD, {"x": x}, x.shape, template["T"], grid=x.size, template=template)


def test_everything_is_as_before_when_it_ends():
    before = mx.fast.metal_kernel, metal.available
    outside = launch.build("chunk_states")

    def fail():
        assert metal.available()
        assert mx.fast.metal_kernel is not before[0]
        assert launch.build("chunk_states") is not outside
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), emulator.emulated():
        fail()
    assert (mx.fast.metal_kernel, metal.available) == before
    assert type(launch.build("chunk_states")) is type(outside)


def test_launches_are_recorded_with_what_they_did():
    with emulator.emulated() as launches:
        KERNELS["rows"].run()
        KERNELS["product"].run()
    rows, product = launches
    assert rows.counts.threadgroup_bytes == 4 * (4 + 200)
    assert rows.counts.barriers == 3 * 4  # 3 threadgroups
    assert product.counts.matrix_products == 1
    assert rows.source != product.source


def test_a_fault_is_told_with_its_line():
    with emulator.emulated(), pytest.raises(emulator.EmulationError) as told:
        KERNELS["rows"].run("row[i] = x[i];", "row[i] = x[i + N];")
    text = str(told.value)
    assert told.value.layer == "bounds"
    assert text.startswith("bounds: trial: thread ")
    assert "reads rows[600] at line " in text
    assert "`for (uint i = me; i < N; i += 128) row[i] = x[i + N];`, an array of 600" in text


def test_a_race_is_told_with_both_lines():
    with emulator.emulated(), pytest.raises(emulator.EmulationError) as told:
        KERNELS["rows"].run("if (me == 0) y[which] =", "y[which] =")
    text = str(told.value)
    assert "thread 0 wrote y[0] at line" in text
    assert "thread 1 writes it at line" in text
    assert text.endswith("no barrier orders device memory between")


def test_a_finding_is_told_with_its_line():
    source = "\n".join(["y[0] = x[0];", "y[1] = missing;"])
    (text,) = emulator.generated_sources(lambda x: trial(source, {"x": x}, (2,)), mx.zeros(8))
    (finding,) = emulator.check(text)
    assert text.splitlines()[finding.line - 1] == finding.text == "y[1] = missing;"
    assert "missing" in str(finding)


def test_mutations_come_before_every_layer():
    x = mx.zeros(32)
    with emulator.emulated(mutate=lambda text: text.replace("+ T(N)", "+ T(N + 1)")) as launches:
        assert set(add(x)) == {4}
    assert "N + 1" in launches[0].source
    with (
        emulator.emulated(mutate=lambda text: text.replace("T(N)", "M")),
        pytest.raises(emulator.EmulationError, match=r"check: trial: type: .*'M'"),
    ):
        add(x)


def test_sources_are_those_that_mlx_generates_for_each_launch():
    def twice(x: mx.array) -> mx.array:
        add(x)
        add(x, N=4)
        add(x)
        return mx.array(add(x[:5]))

    three, four, few = emulator.generated_sources(twice, mx.zeros(8))
    assert "<float, 3>" in three
    assert "<float, 4>" in four
    assert "const device float* x" in three
    assert "const constant float* x" in few  # MLX keeps those under 8 elements elsewhere


def test_a_source_is_taken_apart_line_by_line():
    (text,) = emulator.generated_sources(lambda x: add(x, T=mx.float16), mx.zeros(8, mx.float16))
    source = Source.parse(text)
    assert source.template == (("typename", "T", "float16_t"), ("int", "N", "3"))
    assert source.buffers == [("const device float16_t* ", "x"), ("device float16_t* ", "y")]
    lines = source.prelude.count("\n") + source.signature_lines
    assert text.splitlines()[lines] == source.body.splitlines()[0] == ADD


def test_mlx_judges_the_arguments():
    with emulator.emulated(), pytest.raises(ValueError, match="template"):
        add(mx.zeros(8), N="three")


@pytest.mark.parametrize("schedule", ["backward", ""])
def test_a_schedule_is_one_of_three(schedule):
    with pytest.raises(ValueError, match="forward, reverse, random"), emulator.emulated(schedule):
        pass


def test_results_can_be_repeated():
    """A sum of many floats depends on its order, an order on nothing but the schedule."""
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    source = "y[thread_position_in_grid.x] = simd_sum(x[thread_position_in_grid.x]);"
    found = {}
    for schedule in ("forward", "reverse", "random", "random"):
        with emulator.emulated(schedule):
            y = trial(source, {"x": x}, (64,), grid=64, threadgroup=64)
        assert np.array_equal(found.setdefault(schedule, y), y)
    assert len({y.tobytes() for y in found.values()}) > 1


def test_a_kernel_is_compiled_once_and_forgotten_if_nobody_needs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path))

    def libraries() -> set[Path]:
        return set(tmp_path.glob("emulator/kernel-*.so"))

    with emulator.emulated():
        add(mx.zeros(8))
        (old,) = libraries()
        add(mx.ones(16))
        assert libraries() == {old}

        long_ago = time.time() - build.FORGOTTEN - 60
        os.utime(old, (long_ago, long_ago))
        add(mx.zeros(8))  # used again: as new
        add(mx.zeros(8), N=5)
        assert len(libraries()) == 2
        os.utime(old, (long_ago, long_ago))
        add(mx.zeros(8), N=6)
        assert len(libraries() - {old}) == len(libraries()) == 2


def test_a_sanitizer_needs_a_process_of_its_own():
    with (
        pytest.raises(RuntimeError, match="sanitizer_environment"),
        emulator.emulated(sanitize="thread"),
    ):
        pass
    with pytest.raises(ValueError, match="sanitize must be"), emulator.emulated(sanitize="memory"):
        pass


def test_where_nothing_compiles_tests_are_skipped_but_not_under_ci(monkeypatch):
    monkeypatch.setattr(environment, "compiler", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no C\\+\\+ compiler"):
        emulator.require()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt install g\\+\\+"):
        emulator.require()


def test_without_libclang_the_package_can_still_say_so():
    code = (
        "import sys; sys.modules['clang'] = None\n"
        "from metal.emulator.environment import absence; print(absence())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=build.MSL.parents[2], capture_output=True, text=True
    )
    assert done.stdout.strip() == "no libclang: pip install libclang", done.stderr
