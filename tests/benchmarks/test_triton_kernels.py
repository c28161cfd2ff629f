"""Every Triton kernel compiles for GPUs that are not here, and keeps its numbers in registers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="needs Triton: pip install triton, on Linux")
triton_kernels = pytest.importorskip("triton_kernels")

KERNELS = ["states, forward", "outputs", "states, backward", "adjoints", "gradients", "step"]


def compiled(dtype: str, planes: int, d: int, arch: int) -> dict[str, dict]:
    dtype = triton_kernels.DTYPES[dtype]
    kernels = triton_kernels.launched(dtype, planes, d)
    return {kernel.name: triton_kernels.resources(kernel, dtype, arch) for kernel in kernels}


@pytest.mark.parametrize(
    ("dtype", "planes", "d", "arch"),
    [
        ("bfloat16", 2, 64, 80),
        ("float32", 1, 8, 90),
        *(
            pytest.param(dtype, planes, 64, arch, marks=pytest.mark.slow)
            for dtype in triton_kernels.DTYPES
            for planes in (1, 2)
            for arch in (80, 90)
        ),
    ],
)
def test_nothing_spills_and_products_are_the_matrix_units(dtype, planes, d, arch):
    found = compiled(dtype, planes, d, arch)
    assert list(found) == KERNELS
    assert {name: row["spill_bytes"] for name, row in found.items() if row["spill_bytes"]} == {}
    assert [name for name, row in found.items() if row["matrix_unit"] == "none"] == ["step"]


@pytest.mark.slow
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("d", triton_kernels.kernels.WIDTHS)
@pytest.mark.parametrize("dtype", triton_kernels.DTYPES)
def test_every_width_compiles(dtype, d, planes):
    """Elsewhere than at d = 64 a few numbers may spill."""
    found = compiled(dtype, planes, d, 80)
    assert list(found) == KERNELS
    assert max(row["spill_bytes"] for row in found.values()) <= 128
