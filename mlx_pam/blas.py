"""An optimised BLAS under MLX on Linux, whose CPU wheel carries the reference one, 30 times slower.

A library whose `cblas_sgemm` is global before MLX is loaded takes the place of MLX's own, hence
`preload` must run before the first `import mlx`. It tries, the lightest first:

1. what the environment variable MLX_PAM_BLAS names: the path of a library, or `none`;
2. the OpenBLAS inside NumPy's wheel, which is there anyway. Its sizes are 64-bit integers and its
   names prefixed, so `blas.c` is built in between, once, by any C compiler (under a second);
3. an OpenBLAS of the environment or of the system: nothing to build, and rarely installed;
4. MKL in the environment: as fast, a gigabyte on disk.

Whatever fails falls through to the next, and at last to MLX's own. The number of threads is that
of OMP_NUM_THREADS or OPENBLAS_NUM_THREADS, as ever. On macOS MLX uses Accelerate; a build for
CUDA is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mlx_pam.cache import cache_folder

_ROUTINES = ("sgemm", "dgemm", "cgemm")  # those that MLX calls
_SOURCE = Path(__file__).with_name("blas.c")
_SLOW = "the reference BLAS of MLX's wheel, about 30 times slower than OpenBLAS"
_REMEDY = "install a C compiler (Debian: apt install g++)"


@functools.cache
def preload() -> str:
    """Give MLX the best BLAS at hand, once; returns which one it is, for the start of a run."""
    if sys.platform == "darwin":
        return "Accelerate"
    if not _has_reference_blas():
        return "that of MLX's own build"
    if "mlx.core" in sys.modules:
        return f"{_SLOW}: import mlx_pam.ops before mlx"
    wanted = os.environ.get("MLX_PAM_BLAS")
    if wanted == "none":
        return f"{_SLOW} (MLX_PAM_BLAS=none)"
    if wanted and _make_global(wanted):
        return wanted
    note = f" (MLX_PAM_BLAS={wanted} has no usable cblas_sgemm)" if wanted else ""
    if _adopt_numpy():
        return f"NumPy's OpenBLAS{note}"
    for name, path in _installed():
        if _make_global(path):
            return f"{name} ({path}){note}"
    return f"{_SLOW}{note}: {_REMEDY}"


def _has_reference_blas() -> bool:
    try:
        return sys.platform == "linux" and bool(importlib.metadata.version("mlx-cpu"))
    except importlib.metadata.PackageNotFoundError:
        return False


def _make_global(path: str) -> bool:
    """Load a library with plain names and 32-bit sizes, for all that follow to bind to."""
    try:
        library = ctypes.CDLL(path)
        if not all(hasattr(library, f"cblas_{name}") for name in _ROUTINES):
            return False
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _installed() -> Iterator[tuple[str, str]]:
    folders = [Path(prefix) / "lib" for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    for folder in folders:
        yield "OpenBLAS", str(folder / "libopenblas.so.0")
    yield "OpenBLAS", "libopenblas.so.0"  # wherever the loader finds it
    for folder in folders:
        if (folder / "libiomp5.so").exists():  # without its threads MKL ends the process
            yield from (("MKL", str(path)) for path in sorted(folder.glob("libmkl_rt.so*")))


def _adopt_numpy() -> bool:
    """Load what is built of `blas.c` for all that follow, and point it at NumPy's routines."""
    routines = _numpy_routines()
    if routines is None:
        return False
    try:
        shim = _load_shim()
        for name, routine in routines.items():
            pointer = ctypes.c_void_p.in_dll(shim, f"mlx_pam_{name}")
            pointer.value = ctypes.cast(routine, ctypes.c_void_p).value
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):
        return False
    return True


def _numpy_routines() -> dict[str, ctypes._FuncPointer] | None:
    """The 64-bit matrix products inside NumPy's wheel, if this NumPy came as one."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent.with_name("numpy.libs")
    for path in folder.glob("libscipy_openblas64_*.so*"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            return {name: getattr(library, f"scipy_cblas_{name}64_") for name in _ROUTINES}
    return None


def _load_shim() -> ctypes.CDLL:
    """The library made of `blas.c`: from the user's cache, else built, and kept if it can be."""
    key = hashlib.sha256(_SOURCE.read_bytes() + platform.machine().encode()).hexdigest()[:16]
    kept = cache_folder() / f"blas-{key}.so"
    if kept.exists():
        return ctypes.CDLL(str(kept), mode=ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as workshop:
        built = Path(workshop) / kept.name
        compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", built, _SOURCE]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_suffix(f".{os.getpid()}")
            shutil.copyfile(built, unfinished)
            built = unfinished.replace(kept)
        return ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
