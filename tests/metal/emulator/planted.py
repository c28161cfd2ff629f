"""Correct kernels, and what is planted in them for the layers to find."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from .trial import trial

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
# the sum of squared deviations of each row, one threadgroup a row
ROWS = """
threadgroup float parts[4];
threadgroup float row[N];
const uint me = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
const uint simd = simdgroup_index_in_threadgroup, which = threadgroup_position_in_grid.x;
const device float* x = rows + which * N;
for (uint i = me; i < N; i += 128) row[i] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);  // row is complete
float sum = 0;
for (uint i = me; i < N; i += 128) sum += row[N - 1 - i];
sum = simd_sum(sum);
if (lane == 0) parts[simd] = sum;
threadgroup_barrier(mem_flags::mem_threadgroup);  // parts are complete
const float mean = (parts[0] + parts[1] + parts[2] + parts[3]) / N;
threadgroup_barrier(mem_flags::mem_threadgroup);  // parts have been read
float squares = 0;
for (uint i = me; i < N; i += 128) squares += (row[i] - mean) * (row[i] - mean);
squares = simd_sum(squares);
if (lane == 0) parts[simd] = squares;
threadgroup_barrier(mem_flags::mem_threadgroup);  // parts are complete again
if (me == 0) y[which] = static_cast<T>(parts[0] + parts[1] + parts[2] + parts[3]);
"""
# a b of 8 x 8 matrices: a from the lanes' registers, b through threadgroup memory
PRODUCT = """
threadgroup T tile[64];
const uint lane = thread_index_in_simdgroup;
const int r = ((lane >> 1) & 3) + ((lane >> 2) & 4), c = ((lane & 1) << 1) + ((lane >> 1) & 4);
simdgroup_matrix<T, 8, 8> left, right;
left.thread_elements()[0] = a[8 * r + c];
left.thread_elements()[1] = a[8 * r + c + 1];
for (uint i = lane; i < 64; i += 32) tile[i] = b[i];
simdgroup_barrier(mem_flags::mem_threadgroup);  // tile is complete
simdgroup_load(right, tile, 8);
simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
simdgroup_multiply_accumulate(sum, left, right, sum);
simdgroup_store(sum, y, 8);
"""


@dataclass(frozen=True)
class Kernel:
    """A correct kernel, a launch of it, and what it should give, in float64."""

    source: str
    inputs: dict[str, np.ndarray]
    answer: np.ndarray
    launch: dict[str, Any]

    def run(
        self, old: str = "", new: str = "", template: dict[str, Any] | None = None, **launch: Any
    ) -> np.ndarray:
        """Its output, with `new` where `old` is first, and other settings of the launch."""
        assert old in self.source, f"not in the kernel: {old}"
        settings = {"dtype": mx.float32, **self.launch, **launch}
        settings["template"] = {**self.launch["template"], **(template or {})}
        return trial(self.source.replace(old, new, 1), self.inputs, self.answer.shape, **settings)

    def is_right(self, y: np.ndarray) -> bool:
        """To the accuracy of float32."""
        return bool(np.abs(y - self.answer).max() <= 1e-5 * np.abs(self.answer).max())


def _kernels() -> dict[str, Kernel]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(3, 200)).astype(np.float32)
    a, b = random.normal(size=(2, 8, 8)).astype(np.float32)
    auto = ROWS.replace("const device float* x", "auto x")  # whatever the address space

    def deviations(x: np.ndarray) -> np.ndarray:
        return ((x - x.mean(-1, keepdims=True, dtype=np.float64)) ** 2).sum(-1)

    def launch(grid: int, threadgroup: int, **template: Any) -> dict[str, Any]:
        return {"grid": grid, "threadgroup": threadgroup, "template": {"T": mx.float32, **template}}

    return {
        "rows": Kernel(ROWS, {"rows": rows}, deviations(rows), launch(384, 128, N=200)),
        "few": Kernel(
            auto, {"rows": rows[:1, :5]}, deviations(rows[:1, :5]), launch(128, 128, N=5)
        ),
        "product": Kernel(PRODUCT, {"a": a, "b": b}, a.astype(np.float64) @ b, launch(32, 32)),
    }


KERNELS = _kernels()


@dataclass(frozen=True)
class Fault:
    """What is changed in a kernel, and who finds it: None where nobody is expected to.

    check: the rule by which `check` finds it in the source
    launch: the layer of a launch that finds it, "values" where only the result is wrong
    address, thread: whether AddressSanitizer (with UBSan) and ThreadSanitizer do
    """

    name: str
    check: str | None
    launch: str | None
    address: bool
    thread: bool
    kernel: str = "rows"
    old: str = ""
    new: str = ""
    changed: dict[str, Any] = field(default_factory=dict)

    def run(self) -> np.ndarray:
        return KERNELS[self.kernel].run(self.old, self.new, **self.changed)


def _barrier(comment: str) -> str:
    return f"{BARRIER}  // {comment}"


LOAD = "for (uint i = me; i < N; i += 128) row[i] = x[i];"
WRITE = "if (me == 0) y[which] ="
SUM = "sum = simd_sum(sum);"
YES, NO = True, False
FAULTS = [
    # barriers
    Fault("no barrier before threadgroup memory is read", None, "uninitialised", NO, YES,
          old=_barrier("row is complete"), new=""),
    Fault("no barrier before threadgroup memory is written again", None, "race", NO, YES,
          old=_barrier("parts have been read"), new=""),
    Fault("a barrier for the other memory", None, "race", NO, NO,
          old=_barrier("parts have been read"), new="threadgroup_barrier(mem_flags::mem_device);"),
    Fault("no barrier of the simdgroup", "forgotten barrier", "race", NO, YES, "product",
          old="simdgroup_barrier(mem_flags::mem_threadgroup);", new=""),
    Fault("a barrier in a branch of some threads", "divergent barrier", "divergent barrier", NO, NO,
          old=_barrier("parts are complete again"), new=f"if (me < 64) {BARRIER}"),
    Fault("a barrier in each branch", "divergent barrier", "divergent barrier", NO, NO,
          old=_barrier("parts have been read"), new=f"if (me < 64) {BARRIER}\nelse {BARRIER}"),
    Fault("a thread returns before a barrier", "divergent simdgroup", "divergent simdgroup", NO, NO,
          old=SUM, new=f"if (me == 5) return;\n{SUM}"),
    Fault("a barrier in a loop of differing length", "divergent barrier", "divergent barrier", NO,
          NO, old=LOAD, new=LOAD.replace("row[i] = x[i];", f"{{ row[i] = x[i]; {BARRIER} }}")),
    Fault("simd_sum in a branch of some lanes", "divergent simdgroup", "divergent simdgroup", NO,
          NO, old=SUM, new=f"if (lane < 7) {SUM}"),
    # bounds
    Fault("a read past an input", None, "bounds", YES, NO, old="x[i];", new="x[i + N];"),
    Fault("a read before an input", None, "bounds", YES, NO, old="x[i];", new="x[int(i) - 1];"),
    Fault("a write past an output", None, "bounds", YES, NO,
          old="y[which] =", new="y[which + 1] ="),
    Fault("an index past a threadgroup array", None, "undefined behaviour", YES, NO,
          old="row[i] = x[i];", new="row[i + 1] = x[i];"),
    Fault("a pointer past a threadgroup array", None, "bounds", YES, NO, old="row[i] = x[i];",
          new="{ threadgroup float* p = row + i; p[1] = x[i]; }"),
    Fault("an index past an array in registers", None, "undefined behaviour", YES, NO, old=SUM,
          new="float own[2]; for (int i = 0; i <= 2; ++i) own[i] = sum;\nsum = simd_sum(own[1]);"),
    Fault("a pointer past an array in registers", None, "undefined behaviour", YES, NO, old=SUM,
          new="float own[2] = {sum, sum}; thread float* p = own; p[me / 64 * 2] = 0;\n"
              "sum = simd_sum(own[1]);"),
    Fault("a template argument that the arrays do not have", None, "bounds", YES, NO,
          changed={"template": {"N": 201}}),
    Fault("more threadgroup memory than there is", "threadgroup memory", "threadgroup memory", NO,
          NO, old="row[N];", new="row[N + 8192];"),
    # values that nobody wrote, or that two did
    Fault("threadgroup memory that is not filled", None, "uninitialised", NO, NO,
          old=LOAD, new=LOAD.replace("128", "256")),
    Fault("a sum in registers that begins nowhere", None, "values", NO, NO,
          old="float sum = 0;", new="float own[2]; thread float& sum = own[me % 2];"),
    Fault("an output that is read before it is written", None, "uninitialised", NO, NO,
          old=WRITE, new="if (me == 0) y[which] = y[which] + "),
    Fault("an output that is not filled", None, "unwritten", NO, NO,
          old="if (me == 0)", new="if (me == 0 && which > 0)"),
    Fault("one output written by all threads", None, "race", NO, YES,
          old="if (me == 0) y", new="y"),
    Fault("one output written by two threadgroups", None, "race", NO, NO,
          old=WRITE, new="if (me == which) y[0] = y[which] ="),
    # types and names
    Fault("a name that is not declared", "type", "compile", NO, NO, old="x[i];", new="xx[i];"),
    Fault("a function that Metal does not have", "type", "compile", NO, NO,
          old="simd_sum", new="simd_add"),
    Fault("device memory in a threadgroup pointer", "type", "compile", NO, NO,
          old=SUM, new=f"threadgroup float* p = x;\n{SUM}"),
    Fault("a small input in a device pointer", "type", None, NO, NO, "few",
          old="auto x", new="const device float* x"),
    Fault("a pointer without an address space", "address space", None, NO, NO,
          old=SUM, new=f"float* p = row;\n{SUM}"),
    Fault("an input that is written", "type", "compile", NO, NO,
          old=SUM, new=f"rows[0] = sum;\n{SUM}"),
    Fault("an input that is written through a cast", None, "input written", NO, YES,
          old=SUM, new=f"const_cast<device float*>(rows)[0] = sum;\n{SUM}"),
    Fault("a double", "double", None, NO, NO, old="float sum", new="double sum"),
    Fault("a float that is to be a bfloat by itself", "bfloat", "compile", NO, NO,
          old="static_cast<T>", new="",
          changed={"template": {"T": mx.bfloat16}, "dtype": mx.bfloat16}),
    Fault("a name that MLX uses", "name", None, NO, NO,
          changed={"header": "METAL_FUNC int ceildiv(int a, int b) { return (a + b - 1) / b; }\n"}),
    # arithmetic
    Fault("an offset of more than 31 bits", None, "undefined behaviour", YES, NO,
          old="const device float* x = rows + which * N;",
          new="const int far = int(which) * 1500000000;\n"
              "const device float* x = rows + (far < 0 ? 0 : which) * N;"),
    Fault("a shift by 32 bits", None, "undefined behaviour", YES, NO,
          old="which * N", new="which * N * (1u << ((lane & 32) | 32))"),
    Fault("a vector that is not aligned", None, "undefined behaviour", YES, NO, old=SUM,
          new=f"sum += 0 * reinterpret_cast<const device float4*>(rows + 1)->x;\n{SUM}"),
    # simdgroup matrices
    Fault("rows for columns in a matrix's lanes", None, "values", NO, NO, "product",
          old="a[8 * r + c];", new="a[8 * c + r];"),
    Fault("an element that a lane does not have", None, "bounds", NO, NO, "product",
          old="left.thread_elements()[1]", new="left.thread_elements()[2]"),
    Fault("a matrix whose address differs by lane", None, "lanes", NO, NO, "product",
          old="simdgroup_load(right, tile, 8)", new="simdgroup_load(right, tile + lane / 16, 8)"),
    Fault("a matrix in half a simdgroup", None, "lanes", NO, NO, "product",
          changed={"grid": 16, "threadgroup": 16}),
    Fault("a matrix of integers", "type", None, NO, NO, "product",
          old="simdgroup_matrix<T, 8, 8> left, right;",
          new="simdgroup_matrix<T, 8, 8> left, right;\nsimdgroup_matrix<int, 8, 8> whole;"),
    # the launch
    Fault("a threadgroup of more than 1024 threads", None, "launch", NO, NO,
          changed={"grid": 2048, "threadgroup": 2048}),
]  # fmt: skip
