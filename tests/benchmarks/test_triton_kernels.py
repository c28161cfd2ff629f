"""Every Triton kernel compiles for GPUs that are not here, and keeps its numbers in registers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="needs Triton: pip install triton, on Linux")
triton_kernels = pytest.importorskip("mlx_pam.benchmarks.triton_kernels")

slow = pytest.mark.slow
KERNELS = ["states, forward", "outputs", "states, backward", "adjoints", "gradients", "step"]


def compiled(dtype: str, planes: int, d: int, arch: int) -> dict[str, dict]:
    dtype = triton_kernels.DTYPES[dtype]
    kernels = triton_kernels.launched(dtype, planes, d)
    return {kernel.name: triton_kernels.resources(kernel, dtype, arch) for kernel in kernels}


def spills(found: dict[str, dict]) -> dict[str, int]:
    return {name: row["spill_bytes"] for name, row in found.items() if row["spill_bytes"]}


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param(dtype, arch, marks=() if arch == 80 and dtype == "bfloat16" else slow)
        for dtype in triton_kernels.DTYPES
        for arch in (80, 90)
    ],
)
def test_a_complex_head_of_64_spills_nothing_and_multiplies_in_matrix_units(dtype, arch):
    found = compiled(dtype, 2, 64, arch)
    assert list(found) == KERNELS
    assert spills(found) == {}
    assert [name for name, row in found.items() if row["matrix_unit"] == "none"] == ["step"]


@pytest.mark.parametrize("arch", [80, pytest.param(90, marks=slow)])
@pytest.mark.parametrize("planes", [1, pytest.param(2, marks=slow)])
@pytest.mark.parametrize(
    ("dtype", "d"),
    [
        pytest.param(dtype, d, marks=() if dtype == "float32" and d == 8 else slow)
        for dtype in triton_kernels.DTYPES
        for d in triton_kernels.kernels.WIDTHS
    ],
)
def test_every_kernel_compiles_and_spills_at_most_a_few_words(dtype, d, planes, arch):
    found = compiled(dtype, planes, d, arch)
    assert list(found) == KERNELS
    assert all(spilled <= 128 for spilled in spills(found).values())
