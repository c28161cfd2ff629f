"""Which accesses race, which are ordered, and what has been written: the model of memory."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from metal import emulator
from metal.emulator.trial import trial

emulator.require()
pytestmark = pytest.mark.kernels

# 64 threads in a threadgroup, two simdgroups; y has an element for each thread of the grid
BEGIN = """
threadgroup int shared[64];
const uint me = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
const uint simd = simdgroup_index_in_threadgroup, at = thread_position_in_grid.x;
"""
FILL = "shared[me] = x[me];"
THREADGROUP = "threadgroup_barrier(mem_flags::mem_threadgroup);"
SIMDGROUP = "simdgroup_barrier(mem_flags::mem_threadgroup);"
DEVICE = "threadgroup_barrier(mem_flags::mem_device);"
BOTH = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"
NOTHING = "threadgroup_barrier(mem_flags::mem_none);"
OPPOSITE, NEIGHBOUR = "y[at] = shared[63 - me];", "y[at] = shared[me ^ 1];"


def layer(*lines: str, grid: int = 64, **options) -> str | None:
    """Who stops a kernel, on 64 numbers."""
    source = BEGIN + "\n".join(lines)
    inputs = {"x": np.arange(64, dtype=np.int32)}
    try:
        with emulator.emulated(checked=False):
            trial(source, inputs, (grid,), mx.int32, grid=grid, threadgroup=64, **options)
    except emulator.EmulationError as error:
        print(error)
        return error.layer
    return None


@pytest.mark.parametrize(
    ("between", "read", "expected"),
    [
        (THREADGROUP, OPPOSITE, None),
        (BOTH, OPPOSITE, None),
        (SIMDGROUP, NEIGHBOUR, None),
        (THREADGROUP, NEIGHBOUR, None),
        ("", "y[at] = shared[me];", None),
        (DEVICE, OPPOSITE, "race"),
        (NOTHING, OPPOSITE, "race"),
        ("y[at] = simd_sum(lane);", NEIGHBOUR, "race"),  # waits, and orders no memory
    ],
)
def test_a_barrier_orders_the_memory_that_it_names(between, read, expected):
    assert layer(FILL, between, read) == expected


@pytest.mark.parametrize(("between", "expected"), [(SIMDGROUP, "race"), (THREADGROUP, None)])
def test_a_barrier_of_the_simdgroup_orders_no_other(between, expected):
    """All have read; then a thread of the second simdgroup writes what the first has read."""
    write = "if (simd == 1) shared[lane] = 0;\ny[at] = shared[me | 32];"
    assert layer(FILL, THREADGROUP, "y[at] = shared[lane];", between, write) == expected


def test_writing_after_others_have_read_needs_a_barrier():
    write = "if (me == 0) shared[63] = 0;"
    assert layer(FILL, THREADGROUP, OPPOSITE, write) is None  # read by thread 0 alone
    assert layer(FILL, THREADGROUP, "y[at] = shared[63];", write) == "race"
    assert layer(FILL, THREADGROUP, "y[at] = shared[63];", THREADGROUP, write) is None


def test_barriers_in_a_loop_order_each_round():
    loop = "for (int i = 0; i < 3; ++i) {{ y[at] = shared[63 - me]; {} shared[me] = i; {} }}"
    assert layer(FILL, THREADGROUP, loop.format(THREADGROUP, THREADGROUP)) is None
    assert layer(FILL, THREADGROUP, loop.format("", THREADGROUP)) == "race"
    assert layer(FILL, THREADGROUP, loop.format(THREADGROUP, "")) == "race"


def test_reading_together_is_no_race():
    assert layer("y[at] = x[0] + x[63 - me];") is None
    assert layer(FILL, THREADGROUP, "y[at] = shared[0];") is None


def test_neighbours_in_a_word_do_not_race():
    halves = "threadgroup half small[64]; small[me] = half(x[me]);"
    bytes_ = "threadgroup uchar small[64]; small[me] = uchar(x[me]);"
    for small in (halves, bytes_):
        assert layer(small, THREADGROUP, "y[at] = int(small[63 - me]);") is None


def test_parts_of_a_vector_or_structure_do_not_race():
    vector = "threadgroup half2 pair[32]; if (me % 2) pair[me / 2].y = half(x[me]);\n"
    vector += "else pair[me / 2].x = half(x[me]);"
    assert layer(vector, THREADGROUP, "y[at] = int(pair[31 - me / 2].y);") is None
    header = "struct Mixed { half a; uchar b; uchar c; float d; };\n"
    mixed = "threadgroup Mixed all[16]; threadgroup Mixed& one = all[me / 4];\n"
    mixed += "switch (me % 4) { case 0: one.a = half(me); break; case 1: one.b = me; break;\n"
    mixed += "case 2: one.c = me; break; default: one.d = me; }"
    read = "y[at] = int(float(all[0].a) + all[15].d + all[15 - me / 4].b + all[3].c);"
    assert layer(mixed, THREADGROUP, read, header=header) is None
    assert layer(mixed, read, header=header) in ("race", "uninitialised")


def test_device_memory_is_ordered_within_a_threadgroup_alone():
    shift = "y[at] = x[me];", DEVICE, "const int v = y[at ^ {}];", BOTH, "y[at] = v;"
    assert layer(*shift[:2], shift[2].format(1), *shift[3:], grid=128) is None
    assert layer(*shift[:2], shift[2].format(64), *shift[3:], grid=128) in ("race", "uninitialised")
    assert layer("y[at] = x[me];", "if (at == 127) y[0] = 1;", grid=128) == "race"


def test_atomics_do_not_race_with_each_other():
    body = (
        "threadgroup atomic_int sum;\n"
        "if (me == 0) atomic_store_explicit(&sum, 0, memory_order_relaxed);\n"
        f"{THREADGROUP}\n"
        "atomic_fetch_add_explicit(&sum, x[me], memory_order_relaxed);\n{}\n"
        "y[at] = {};"
    )
    load = "atomic_load_explicit(&sum, memory_order_relaxed)"
    assert layer(body.format(THREADGROUP, load)) is None
    assert layer(body.format("", load)) is None  # some sum, and no race
    plain = body.replace("threadgroup atomic_int sum;", "threadgroup int plain[1];")
    plain = plain.replace("atomic_store_explicit(&sum, 0, memory_order_relaxed)", "plain[0] = 0")
    plain = plain.replace("atomic_fetch_add_explicit(&sum, x[me], memory_order_relaxed)",
                          "plain[0] += x[me]")  # fmt: skip
    assert layer(plain.format(THREADGROUP, "plain[0]")) == "race"


def test_atomics_of_all_threadgroups_add_up():
    source = "atomic_fetch_add_explicit(&y[0], x[thread_position_in_grid.x], memory_order_relaxed);"
    x = np.arange(96, dtype=np.float32)
    with emulator.emulated():
        y = trial(source, {"x": x}, (1,), grid=96, init_value=0, atomic_outputs=True)
    assert y.tolist() == [x.sum()]


def test_only_an_initial_value_may_be_left_or_read():
    source = "if (at > 0) y[at] = x[me];"
    assert layer(source) == "unwritten"
    assert layer(source, init_value=7) is None
    assert layer("y[at] = y[at] + 1;") == "uninitialised"
    assert layer("y[at] = y[at] + 1;", init_value=7) is None


def test_each_threadgroup_finds_its_memory_as_new():
    first = "if (threadgroup_position_in_grid.x == 0) shared[me] = x[me];"
    assert layer(first, "y[at] = shared[me];") is None
    assert layer(first, "y[at] = shared[me];", grid=128) == "uninitialised"


@pytest.mark.parametrize("index", ["at + 1", "int(at) - 1", "at + (1 << 20)", "at - (1l << 40)"])
def test_an_array_ends_where_it_ends(index):
    assert layer(f"y[at] = x[{index}];") == "bounds"
    assert layer("y[at] = x[me];", BOTH, f"y[{index}] = 0;") in ("bounds", "race")


def test_constants_of_the_kernel_can_be_read():
    header = "constant int TABLE[4] = {3, 1, 4, 1};\n"
    assert layer("y[at] = TABLE[me & 3];", header=header) is None
