"""What the check refuses in a source, and what it leaves alone."""

from __future__ import annotations

import mlx.core as mx
import pytest
from metal import emulator
from metal.emulator.planted import KERNELS
from metal.emulator.trial import trial

from mlx_pam.ops.metal import launch

emulator.require()
pytestmark = pytest.mark.kernels

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
BEGIN = """
threadgroup T shared[64];
const uint me = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
const uint simd = simdgroup_index_in_threadgroup, group = threadgroup_position_in_grid.x;
"""


def rules(body: str, *, dtype: mx.Dtype = mx.float32, header: str = "", size: int = 64) -> set[str]:
    """The rules that a kernel breaks, of which `x` and `n` are inputs and T, N the template."""

    def run(x: mx.array) -> None:
        template = {"T": dtype, "N": 8}
        trial(BEGIN + body, {"x": x, "n": 5}, (64,), dtype, template=template, header=header)

    (source,) = emulator.generated_sources(run, mx.zeros(size, dtype))
    return {finding.rule for finding in emulator.check(source)}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "body",
    [
        "y[me] = x[me];",
        "float f = x[me] * 2.0f; f += x[0]; y[me] = static_cast<T>(f);",
        "y[me] = me < 8 ? x[me] : T(0); y[me] = T(1.0); y[me] = (T)n;",
        "const float unsuffixed = 0.5; y[me] = T(unsuffixed * x[me]);",
        "const device T* p = x + me; device T* q = y + me; q[0] = p[0];",
        "thread T own[2]; thread T* p = own; p[0] = x[0]; y[me] = *p;",
        f"shared[me] = x[me]; {BARRIER} const threadgroup T* p = shared; y[me] = p[63 - me];",
        "auto p = x; y[me] = p[me];",
        "vec<T, 4> v = *reinterpret_cast<const device vec<T, 4>*>(x + 4 * me); y[me] = v.x;",
        "float4 v = float4(1.0f, 2, me, x[0]); float2 w = v.xy * v.zw; y[me] = T(w.x + w[1]);",
        "vec<float, 2> v = vec<float, 2>(1, 2); y[me] = T(dot(v, v));",
        "#pragma unroll\nfor (int i = 0; i < N; ++i) y[me] = x[i];",
        "half h = 1.5f; h = h * 2.0h; y[me] = static_cast<T>(float(h));",
        "const uint bits = as_type<uint>(1.0f); y[me] = T(as_type<float>(bits) + INFINITY);",
        "y[me] = T(metal::precise::exp(1.0f) + fast::log(2.0f) + metal::max(1.0f, float(x[0])));",
        "simdgroup_matrix<T, 8, 8> m; simdgroup_load(m, x, 8); simdgroup_store(m, shared, 8);",
        "simdgroup_float8x8 m = simdgroup_float8x8(1.0f); y[me] = T(m.thread_elements()[0]);",
    ],
)  # fmt: skip
def test_what_metal_accepts_is_left_alone(body, dtype):
    assert rules(body, dtype=dtype) == set()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", launch.SIGNATURES)
def test_the_kernels_of_the_package_are_left_alone(name, dtype):
    """In both kinds of numbers, with the smallest arrays and with larger ones."""
    for planes in ((2,), ()):
        for batch, time in ((1, 1), (2, 40)):
            rows = mx.zeros((batch, time, 2, *planes, 16), dtype)
            decay, state = mx.zeros((batch, time, 2)), mx.zeros((batch, 2, *planes, 16, 16))
            states = mx.zeros((batch, 2, -(-time // launch.CHUNK), *planes, 16, 16))
            arrays = {
                "chunk_states": (rows, rows, decay, state),
                "chunk_outputs": (rows, rows, rows, decay, states),
                "chunk_gradients": (rows, rows, rows, decay, rows, states, states),
                "token_steps": (rows, rows, rows, decay, state),
            }[name]
            (source,) = emulator.generated_sources(getattr(launch, name), *arrays)
            assert emulator.check(source) == []


@pytest.mark.parametrize(
    "body",
    [
        "T v = 2.0f * x[0]; y[me] = v;",
        "T v = 0.0f; y[me] = v;",
        "T v = 1; y[me] = v;",
        "y[me] = me < 8 ? x[me] : 0.0f;",
        "y[me] = x[me]; y[me] += 1.0f;",
        "T own[2] = {x[0], 0.0f}; y[me] = own[1];",
        "y[me] = metal::exp(float(x[me]));",
    ],
)
def test_only_a_cast_makes_a_bfloat(body):
    assert "bfloat" in rules(body, dtype=mx.bfloat16)
    assert rules(body, dtype=mx.float32) == set()


def test_only_a_cast_makes_a_bfloat_in_a_template_too():
    header = "template <typename U> METAL_FUNC U half_of(U v) { return v * 0.5f; }\n"
    assert "bfloat" in rules("y[me] = half_of<T>(x[me]);", dtype=mx.bfloat16, header=header)
    assert rules("y[me] = half_of<T>(x[me]);", dtype=mx.float16, header=header) == set()


def test_half_and_bfloat_do_not_mix():
    assert "type" in rules("half h = x[0]; y[me] = T(float(h));", dtype=mx.bfloat16)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("threadgroup T* p = x; y[me] = p[0];", "type"),
        ("device T* p = x; y[me] = p[0];", "type"),  # x is const
        ("const device T* p = shared; y[me] = p[0];", "type"),
        ("constant float* p = &n; y[me] = *p;", "type"),
        ("const T* p = x; y[me] = p[0];", "address space"),
        ("T own[2]; T& r = own[0]; r = 1; y[me] = r;", "address space"),
        ("y[me] = *(const T*)(x + me);", "address space"),
        ("double d = 1; y[me] = d;", "double"),
        ("y[me] = x[me] + missing;", "type"),
        ("y[me] = x[me]", "type"),
        ("y[me] = max(x[me], 0);", "type"),  # a float and an int: which max?
        ("float v; y[me] = v;", "type"),
        ("float own[2] = {0, 0}; y[me] = own[2];", "type"),
        ("threadgroup float more[8192]; more[me] = 0; y[me] = more[me];", "threadgroup memory"),
        ("threadgroup float more[64] = {0}; y[me] = more[me];", "type"),
        ("simdgroup_matrix<float, 4, 4> m; y[me] = 0;", "type"),
        ("simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, x, 8); y[me] = 0;", "type"),
        ("y[me] = x_shape[0] / n.x;", "type"),
    ],
)
def test_what_metal_refuses_is_found(body, rule):
    assert rule in rules(body)


def test_a_small_array_lies_in_constant_memory():
    body = "const device T* p = x; y[me] = p[0];"
    assert rules(body, size=8) == set()
    assert rules(body, size=7) == {"type"}
    assert rules("auto p = x; y[me] = p[0];", size=7) == set()


def test_helpers_need_address_spaces_as_well():
    header = "METAL_FUNC float first({}float* p) {{ return p[0]; }}\n"
    body = "y[me] = first(x);"
    assert rules(body, header=header.format("const device ")) == set()
    assert "address space" in rules(body, header=header.format("const "))


@pytest.mark.parametrize("name", ["ceildiv", "elem_to_loc", "Limits", "complex64_t"])
def test_names_of_the_prelude_that_mlx_adds_are_taken(name):
    assert rules("y[me] = 0;", header=f"struct {name} {{ int own; }};\n") == {"name"}
    assert rules("y[me] = 0;", header=f"struct my_{name} {{ int own; }};\n") == set()


HELPERS = f"""
METAL_FUNC void wait() {{ {BARRIER} }}
METAL_FUNC void wait_if(bool all) {{ if (all) {BARRIER} }}
template <int M> METAL_FUNC float total(float v) {{ return M * simd_sum(v); }}
METAL_FUNC void differ(thread int& a, uint by) {{ a += int(by); }}
METAL_FUNC int rounds(int a) {{ return a + 1; }}
"""


@pytest.mark.parametrize(
    "body",
    [
        f"for (int i = 0; i < n; ++i) {BARRIER}",
        f"if (group > 2) {BARRIER}",
        f"if (group > 2) return; {BARRIER}",
        f"int sum = 0; for (uint i = me; i < 64; i += 8) sum += i; {BARRIER} y[me] = sum;",
        f"if (me == 3) y[0] = 1; {BARRIER}",
        f"for (int i = 0; i < n; ++i) {{ if (i == 3) break; {BARRIER} }}",
        f"for (int i = 0; i < n; ++i) {{ {BARRIER} if (lane > 3) continue; y[me] = 1; }}",
        f"const int rest = min(n, N - int(group)); while (rest > N) {BARRIER}",
        f"if (N > 4) {{ {BARRIER} }} else y[me] = 0;",
        f"shared[me] = x[me]; {BARRIER} if (shared[0] > 0) {BARRIER}",
        "if (simd == 0) y[me] = simd_sum(x[me]);",
        "if (simd_any(lane > 40)) y[me] = simd_sum(x[me]);",
        "for (uint i = simd; i < 7; ++i) y[me] = total<2>(x[me]);",
        "wait(); wait_if(n > 3); for (int i = 0; i < rounds(n); ++i) wait();",
    ],
)
def test_barriers_that_all_threads_reach_are_left_alone(body):
    assert rules(body, header=HELPERS) == set()


@pytest.mark.parametrize(
    "body",
    [
        f"if (me < 32) {BARRIER}",
        f"if (me < 32) y[me] = 1; else {BARRIER}",
        f"if (simd == 0) {BARRIER}",
        f"for (uint i = me; i < 64; i += 8) {BARRIER}",
        f"uint i = 0; while (i < me) {{ ++i; {BARRIER} }}",
        f"uint i = me; do {{ {BARRIER} }} while (i-- > 3);",
        f"if (lane == 0) return; {BARRIER}",
        f"for (int i = 0; i < n; ++i) {{ if (i > int(me)) break; {BARRIER} }}",
        f"for (int i = 0; i < n; ++i) {{ {BARRIER} if (i > int(me)) break; }}",
        f"for (int i = 0; i < n; ++i) {{ if (lane > 3) continue; {BARRIER} }}",
        f"int flag = 0; if (me == 1) flag = 1; if (flag) {BARRIER}",
        f"int a = 0, b = 0; for (int i = 0; i < n; ++i) {{ if (b) {BARRIER} b = a; a = me; }}",
        f"int own[2]; own[0] = 0; own[1] = lane; if (own[0]) {BARRIER}",
        "if (me < 32) wait();",
        "wait_if(me < 32);",
        f"int a = 0; differ(a, lane); if (a > 3) {BARRIER}",
        f"if (simd_sum(x[me]) > 3) {BARRIER}",  # the same in a simdgroup, not in all
        f"switch (me) {{ case 0: {BARRIER} break; default: y[me] = 0; }}",
    ],
)
def test_barriers_that_some_threads_miss_are_found(body):
    assert "divergent barrier" in rules(body, header=HELPERS)


@pytest.mark.parametrize(
    "body",
    [
        "if (lane < 7) y[me] = simd_sum(x[me]);",
        "y[me] = lane < 7 ? simd_sum(x[me]) : x[me];",
        "if (lane == 31) return; y[me] = simd_shuffle_xor(x[me], ushort(1));",
        "for (uint i = lane; i < 64; i += 8) y[me] = total<2>(x[me]);",
        "if (me > 5) simdgroup_barrier(mem_flags::mem_threadgroup);",
    ],
)
def test_simd_operations_that_some_lanes_miss_are_found(body):
    assert "divergent simdgroup" in rules(body, header=HELPERS)


def test_threadgroup_memory_without_any_barrier_is_found():
    assert rules("shared[me] = x[me]; y[me] = shared[63 - me];") == {"forgotten barrier"}
    for barrier in (BARRIER, "simdgroup_barrier(mem_flags::mem_threadgroup);"):
        assert rules(f"shared[me] = x[me]; {barrier} y[me] = shared[63 - me];") == set()
    assert rules("y[me] = shared[me];") == set()


def test_planted_kernels_are_left_alone():
    for kernel in KERNELS.values():
        (source,) = emulator.generated_sources(kernel.run)
        assert emulator.check(source) == []
