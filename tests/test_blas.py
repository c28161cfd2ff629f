"""The BLAS under MLX: the one that `preload` names is the one that MLX calls, and it is right."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
from new_process import python

from mlx_pam import blas

linux_cpu = pytest.mark.skipif(
    not blas._has_reference_blas(), reason="MLX's CPU wheel for Linux is not installed"
)
PRODUCTS = """
from mlx_pam import blas
print(blas.preload())
import mlx.core as mx
import numpy as np
rng = np.random.default_rng(0)
for m, k, n in [(1, 7, 5), (64, 1, 33), (130, 257, 61)]:
    for a_view, b_view in [("mk", "kn"), ("km", "kn"), ("mk", "nk"), ("km", "nk")]:
        sizes = {"m": m, "k": k, "n": n}
        a = rng.standard_normal([sizes[axis] for axis in a_view]).astype(np.float32)
        b = rng.standard_normal([sizes[axis] for axis in b_view]).astype(np.float32)
        x, y = mx.array(a), mx.array(b)
        x, a = (x, a) if a_view == "mk" else (x.T, a.T)
        y, b = (y, b) if b_view == "kn" else (y.T, b.T)
        found, expected = np.array(x @ y), a.astype(np.float64) @ b
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), (m, k, n)
"""


def run(code: str, **environment: str) -> tuple[str, str]:
    """Output and errors of a fresh process, in which nothing has been loaded."""
    done = python("-c", code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def library_that_mlx_binds(errors: str) -> str:
    """The file that the dynamic loader (LD_DEBUG=bindings) tied MLX's `cblas_sgemm` to."""
    (line,) = {
        line.split("binding", 1)[1]
        for line in errors.splitlines()
        if "libmlx.so" in line.split(" to ")[0] and line.endswith("`cblas_sgemm'")
    }
    return Path(line.split(" to ")[1].split(" [")[0]).name


@linux_cpu
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
def test_mlx_calls_the_openblas_of_numpy(tmp_path: Path) -> None:
    if blas._numpy_routines() is None:
        pytest.skip("this NumPy has no OpenBLAS of its own")
    environment = {"MLX_PAM_BLAS": "", "MLX_PAM_CACHE": str(tmp_path), "LD_DEBUG": "bindings"}
    for _ in range(2):  # built, then found in the cache
        output, errors = run(PRODUCTS, **environment)
        assert output == "NumPy's OpenBLAS"
        assert library_that_mlx_binds(errors).startswith("blas-")
    (kept,) = tmp_path.iterdir()
    assert kept.name == library_that_mlx_binds(errors)


@linux_cpu
def test_without_a_compiler_or_a_cache_the_products_are_still_right(tmp_path: Path) -> None:
    output, _ = run(PRODUCTS, PATH=str(tmp_path), MLX_PAM_CACHE="/dev/null", MLX_PAM_BLAS="")
    assert "OpenBLAS" in output or "MKL" in output  # an installed one, or the hint


@linux_cpu
def test_the_user_has_the_first_word(tmp_path: Path) -> None:
    output, errors = run(PRODUCTS, MLX_PAM_BLAS="none", LD_DEBUG="bindings")
    assert "reference BLAS" in output
    assert library_that_mlx_binds(errors).startswith("libblas")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    output, _ = run(PRODUCTS, MLX_PAM_BLAS=str(broken))
    assert f"{broken} has no usable cblas_sgemm" in output


@linux_cpu
def test_too_late_is_said() -> None:
    output, _ = run("import mlx.core; from mlx_pam import blas; print(blas.preload())")
    assert output.endswith("import mlx_pam.ops before mlx")


@linux_cpu
def test_sizes_are_widened() -> None:
    """The shim itself, without MLX: all three routines, with rows longer than what is used."""
    if not blas._adopt_numpy():
        pytest.skip("no C compiler, or a NumPy without its own OpenBLAS")
    every = ctypes.CDLL(None)
    rng = np.random.default_rng(0)
    for name, kind in [("sgemm", np.float32), ("dgemm", np.float64), ("cgemm", np.complex64)]:
        a, b = (rng.standard_normal((3, 10)).astype(kind) for _ in "ab")
        c = np.ones((3, 5), kind)
        scalars = {
            "sgemm": (ctypes.c_float(2), ctypes.c_float(1)),
            "dgemm": (ctypes.c_double(2), ctypes.c_double(1)),
            "cgemm": tuple(np.array(x, kind).ctypes for x in (2, 1)),
        }[name]
        row_major, plain, transposed = 101, 111, 112
        expected = 2 * a[:, :4] @ b[:, :4].T + 1
        alpha, beta = (getattr(s, "_as_parameter_", s) for s in scalars)
        getattr(every, f"cblas_{name}")(
            row_major, plain, transposed, 3, 3, 4,
            alpha, a.ctypes, 10, b.ctypes, 10, beta, c.ctypes, 5,
        )  # fmt: skip
        np.testing.assert_allclose(c[:, :3], expected, rtol=1e-5)
        assert (c[:, 3:] == 1).all()
