"""The language as the emulator speaks it: numbers, vectors, attributes, simdgroups, launches."""

from __future__ import annotations

import ctypes
import subprocess

import mlx.core as mx
import numpy as np
import pytest
from metal import emulator
from metal.emulator.build import COMMON, MSL, compiler
from metal.emulator.launch import SCHEDULES
from metal.emulator.trial import trial

emulator.require()
pytestmark = pytest.mark.kernels

ALL_BITS = np.arange(1 << 16, dtype=np.uint16)
EVERY = "const uint i = thread_position_in_grid.x;\n"


def run(source: str, inputs: dict, shape, dtype: mx.Dtype = mx.float32, **launch) -> np.ndarray:
    with emulator.emulated(schedule=launch.pop("schedule", "forward")):
        return trial(source, inputs, shape, dtype, **launch)


def between_numbers() -> np.ndarray:
    """float32 in all exponents: numbers of 16 bits, halfway between two, and next to both."""
    halves = ALL_BITS.view(np.float16).astype(np.float32)
    wide = (ALL_BITS.astype(np.uint32) << 16).view(np.float32)
    numbers = np.concatenate([halves, wide])
    numbers = numbers[np.isfinite(numbers)]
    halfway = (numbers.view(np.uint32) + 0x8000).view(np.float32)
    half_of_half = (numbers.view(np.uint32) + 0x1000).view(np.float32)
    exact = np.concatenate([numbers, halfway, half_of_half])
    exact = exact[np.isfinite(exact)]
    return np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)])


@pytest.fixture(scope="module", params=[[], ["-DEMULATOR_OWN_HALF"]], ids=["compiler", "own"])
def conversions(request, tmp_path_factory) -> ctypes.CDLL:
    """half and bfloat of `scalars.h`, with the compiler's half and with its stand-in."""
    folder = tmp_path_factory.mktemp("scalars")
    (folder / "scalars.cpp").write_text(
        '#include "scalars.h"\n'
        "using namespace metal;\n"
        "#define EACH(T)                                                       \\\n"
        '  extern "C" __attribute__((visibility("default")))                   \\\n'
        "  void narrow_##T(const float* x, ushort* y, int n) {                 \\\n"
        "    for (int i = 0; i < n; ++i) y[i] = as_type<ushort>((T)x[i]);      \\\n"
        "  }                                                                   \\\n"
        '  extern "C" __attribute__((visibility("default")))                   \\\n'
        "  void widen_##T(const ushort* x, float* y, int n) {                  \\\n"
        "    for (int i = 0; i < n; ++i) y[i] = (float)as_type<T>(x[i]);       \\\n"
        "  }\n"
        "EACH(half) EACH(bfloat)\n"
    )
    library = folder / "scalars.so"
    command = [compiler(), *COMMON, *request.param, "-I", str(MSL), "-shared"]
    subprocess.run([*command, str(folder / "scalars.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def call(function, x: np.ndarray, dtype: type) -> np.ndarray:
    x, y = np.ascontiguousarray(x), np.empty(x.shape, dtype)
    function(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), x.size)
    return y


def test_half_is_rounded_and_widened_to_the_bit(conversions):
    x = between_numbers()
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    assert np.array_equal(call(conversions.narrow_half, x, np.uint16), expected)
    widened = call(conversions.widen_half, ALL_BITS, np.float32)
    assert np.array_equal(widened, ALL_BITS.view(np.float16).astype(np.float32), equal_nan=True)


def test_bfloat_is_rounded_and_widened_to_the_bit(conversions):
    x = between_numbers()
    expected = np.array(mx.array(x).astype(mx.bfloat16).view(mx.uint16))
    assert np.array_equal(call(conversions.narrow_bfloat, x, np.uint16), expected)
    widened = call(conversions.widen_bfloat, ALL_BITS, np.float32)
    expected = (ALL_BITS.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(widened, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_sixteen_bits_compute_as_the_language_says(dtype):
    """In their own type with each other, in float with a float; results are rounded once."""
    a = mx.array(np.linspace(0.1, 3, 64, dtype=np.float32)).astype(dtype)
    source = (
        EVERY + "T v = a[i]; T own = v * v + v; float mixed = v * 1.5f; v += T(2);\n"
        "y[4 * i] = own; y[4 * i + 1] = mixed; y[4 * i + 2] = v; y[4 * i + 3] = -a[i];"
    )
    y = run(source, {"a": a}, (64, 4), grid=64, template={"T": dtype})
    wide = a.astype(mx.float32)
    product = (wide * wide).astype(dtype).astype(mx.float32)
    expected = [(product + wide).astype(dtype), wide * 1.5, (wide + 2).astype(dtype), -wide]
    expected = np.stack([np.array(x.astype(mx.float32)) for x in expected], axis=1)
    unit = {mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}[dtype]  # a compiler may round once less
    assert np.array_equal(y[:, 1:], expected[:, 1:])
    assert np.all(np.abs(y[:, 0] - expected[:, 0]) <= unit * np.abs(expected[:, 0]))


def test_vectors_have_components_and_arithmetic():
    source = (
        EVERY + "float4 v = reinterpret_cast<const device float4*>(x)[i];\n"
        "float2 p = v.xy, q = float2(v.zw); q += 2.0f * p; p = -p / q;\n"
        "v.x = p.x; v.y = p[1]; v.zw = q; v = v * float4(1, 2, 3, 4) + 1.0f;\n"
        "half2 h = half2(half(p.x), half(1)); uint3 u = uint3(1, 2, 3);\n"
        "y[5 * i] = v.x; y[5 * i + 1] = v.y; y[5 * i + 2] = dot(v, v);\n"
        "y[5 * i + 3] = float(h.y) + float(u.z); y[5 * i + 4] = v.w;"
    )
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = run(source, {"x": x}, (32, 5))
    q = x[:, 2:] + 2 * x[:, :2]
    v = np.concatenate([-x[:, :2] / q, q], axis=1) * [1, 2, 3, 4] + 1
    expected = np.stack([v[:, 0], v[:, 1], (v * v).sum(-1), np.full(32, 4), v[:, 3]], axis=1)
    assert np.allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_vector_has_no_fifth_component():
    with pytest.raises(emulator.EmulationError, match="an index outside of its vector"):
        run("float4 v = float4(x[0]); y[0] = v[int(x[3])];", {"x": np.full(8, 4.0)}, (1,), grid=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_simdgroup_sums_scans_and_shuffles(schedule):
    source = (
        "const uint i = thread_position_in_grid.x, lane = thread_index_in_simdgroup;\n"
        "const int v = x[i]; device int* o = y + 8 * i;\n"
        "o[0] = simd_sum(v); o[1] = simd_max(v); o[2] = simd_prefix_inclusive_sum(v);\n"
        "o[3] = simd_prefix_exclusive_sum(v); o[4] = simd_shuffle_xor(v, ushort(5));\n"
        "o[5] = simd_shuffle(v, ushort(31 - lane)); o[6] = simd_broadcast(v, ushort(3));\n"
        "o[7] = simd_any(v < 0) ? int(simd_all(v < 50)) : -1;"
    )
    x = np.random.default_rng(0).integers(-50, 50, (3, 32)).astype(np.int32)
    y = run(source, {"x": x}, (3, 32, 8), mx.int32, grid=96, threadgroup=96, schedule=schedule)
    lanes = np.arange(32)
    inclusive = x.cumsum(1)
    wide = (np.broadcast_to(column[:, None], x.shape) for column in (x.sum(1), x.max(1)))
    expected = [
        *wide, inclusive, inclusive - x, x[:, lanes ^ 5], x[:, ::-1],
        np.broadcast_to(x[:, 3:4], x.shape), np.ones_like(x),
    ]  # fmt: skip
    assert np.array_equal(y, np.stack(expected, axis=2))


def test_what_a_shuffle_finds_outside_of_the_simdgroup_is_no_number():
    shuffled = "y[thread_position_in_grid.x] = simd_shuffle_down(x[thread_position_in_grid.x], {});"
    x = np.arange(32, dtype=np.float32)
    y = run(shuffled.format("ushort(4)"), {"x": x}, (32,))
    assert np.array_equal(y[:28], x[4:])
    assert np.isnan(y[28:]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_matrices_are_loaded_multiplied_and_stored(dtype, schedule):
    """Blocks of larger matrices, by address and by origin, and transposed."""
    source = (
        "simdgroup_matrix<T, 8, 8> left, right;\n"
        "simdgroup_load(left, a, 20, ulong2(3, 0));\n"
        "simdgroup_load(right, b + 2 * 24 + 5, 24, ulong2(0, 0), true);\n"
        "simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);\n"
        "simdgroup_multiply_accumulate(sum, left, right, sum);\n"
        "simdgroup_store(sum, y, 8);"
    )
    random = np.random.default_rng(0)
    a = mx.array(random.normal(size=(8, 20)).astype(np.float32)).astype(dtype)
    b = mx.array(random.normal(size=(16, 24)).astype(np.float32)).astype(dtype)
    y = run(source, {"a": a, "b": b}, (8, 8), schedule=schedule, template={"T": dtype})
    left, right = (np.array(m.astype(mx.float32)).astype(np.float64) for m in (a, b))
    assert np.allclose(y, left[:, 3:11] @ right[2:10, 5:13].T + 0.5, atol=1e-5)


def test_threads_know_where_they_are():
    """A grid that no threadgroup divides: those at its ends are smaller."""
    source = (
        "const uint3 p = thread_position_in_grid, g = threadgroup_position_in_grid;\n"
        "const uint3 l = thread_position_in_threadgroup, s = threads_per_threadgroup;\n"
        "device int* o = y + 7 * (p.x + 10 * (p.y + 5 * p.z));\n"
        "o[0] = g.x * 4 + l.x == p.x && g.y * 3 + l.y == p.y && g.z * 2 + l.z == p.z;\n"
        "o[1] = thread_index_in_threadgroup == l.x + s.x * (l.y + s.y * l.z);\n"
        "o[2] = thread_index_in_threadgroup == simdgroup_index_in_threadgroup * 32\n"
        "  + thread_index_in_simdgroup;\n"
        "o[3] = s.x; o[4] = s.y; o[5] = s.z; o[6] = threadgroups_per_grid.x;"
    )
    y = run(source, {"x": mx.zeros(8)}, (3, 5, 10, 7), mx.int32, grid=(10, 5, 3),
            threadgroup=(4, 3, 2))  # fmt: skip
    assert y[..., :3].all()
    assert [set(y[..., i].flat) for i in range(3, 7)] == [{4, 2}, {3, 2}, {2, 1}, {3}]
    assert y[2, 4, 9, 3:6].tolist() == [2, 2, 1]


def test_threadgroup_variables_of_every_shape():
    source = (
        "threadgroup float a[2][N / 2], b[(N + 1) * 2], single;\n"
        "threadgroup half4 v[4];  // of another type\n"
        "const uint me = thread_index_in_threadgroup;\n"
        "threadgroup int more[32];\n"
        "for (int k = 0; k < 2; ++k) { more[me] = k; y[me] = more[me]; }\n"
        "a[me % 2][me / 2] = x[me]; b[2 * me] = 1; if (me == 0) single = 5;\n"
        "if (me < 4) v[me] = half4(half(me));\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "y[me] += a[1 - me % 2][me / 2] + b[62 - 2 * me] + single + float(v[me / 8].w);"
    )
    x = np.arange(32, dtype=np.float32)
    y = run(source, {"x": x}, (32,), template={"N": 32})
    assert np.array_equal(y, 1 + x[np.arange(32) ^ 1] + 1 + 5 + np.arange(32) // 8)


def test_shapes_and_strides_come_along():
    source = (
        EVERY + "const int r = i / x_shape[1], c = i % x_shape[1];\n"
        "y[i] = x[r * x_strides[0] + c * x_strides[1]] * s + x_ndim;"
    )
    x = mx.arange(24, dtype=mx.float32).reshape(4, 6)
    for view in (x, x.T, x[:, ::2], x[1:3, 2:5], mx.broadcast_to(x[0], (3, 6))):
        for contiguous in (True, False):
            options = {"ensure_row_contiguous": contiguous}
            y = run(source, {"x": view, "s": 2.0}, view.shape, grid=view.size, **options)
            assert np.array_equal(y, np.array(view) * 2 + 2)


def test_functions_err_as_far_as_the_language_allows():
    """Within 4 units in the last place, not exact, and exact at 0 and where all is 0."""
    x = np.linspace(-20, 20, 4096, dtype=np.float32)
    y = run(EVERY + "y[i] = metal::exp(x[i]);", {"x": x}, x.shape, grid=x.size)
    exact = np.exp(x.astype(np.float64))
    off = np.abs(y - exact) / np.spacing(exact.astype(np.float32))
    assert off.max() <= 4
    assert off.mean() > 1
    source = EVERY + "y[i] = metal::exp(x[i]);"
    x = np.array([0, -np.inf, -200, np.inf] * 2, np.float32)
    assert np.array_equal(run(source, {"x": x}, x.shape, grid=8), [1, 0, 0, np.inf] * 2)


def test_tiny_floats_are_zero_as_on_the_device():
    source = EVERY + "y[i] = x[i] * 0.5f;"
    x = np.full(8, 1.5e-38, np.float32)
    assert not run(source, {"x": x}, x.shape, grid=8).any()
    assert (x * np.float32(0.5)).all()  # and everywhere else as before
