"""`mx.fast.metal_kernel` on the CPU: generate, check, compile and run each launch, and judge it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import mmap
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .build import CompileError, library
from .check import check
from .source import Source, generate

SCHEDULES = ("forward", "reverse", "random")
GAP = 1 << 24  # between arrays, so that an index past one does not meet the next
PLACE = re.compile(r"@\{(L?)([0-9a-f]+)\}")


class EmulationError(Exception):
    """A kernel is wrong, or cannot be shown to be right. `layer` is what found it."""

    def __init__(self, layer: str, text: str) -> None:
        super().__init__(f"{layer}: {text}")
        self.layer = layer


@dataclass
class Launched:
    """What a launch did. `unwritten` counts elements of outputs that no thread has written."""

    name: str
    source: str
    threadgroup_bytes: int = 0
    barriers: int = 0
    matrix_products: int = 0
    simd_operations: int = 0
    unwritten: dict[str, int] | None = None


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("element", ctypes.c_uint32),
        ("is_output", ctypes.c_uint32),
        ("initialised", ctypes.c_uint32),
        ("unwritten", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("threadgroup", ctypes.c_uint32 * 3),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("threadgroup_bytes", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
        ("matrix_products", ctypes.c_uint64),
        ("simd_operations", ctypes.c_uint64),
        ("error", ctypes.c_char * 1024),
    ]


@dataclass
class Emulation:
    """How launches are carried out, and those that were."""

    schedule: str = "forward"
    sanitize: str | None = None
    mutate: Callable[[str], str] | None = None
    dry: bool = False  # sources only, outputs are zeros
    launches: list[Launched] | None = None

    def kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        *args: Any,
        **kwargs: Any,
    ) -> Callable[..., list[mx.array]]:
        """In the place of `mx.fast.metal_kernel`; MLX judges the arguments."""
        real = METAL_KERNEL(name, input_names, output_names, *args, **kwargs)
        return functools.partial(self._launch, real, name, list(input_names), list(output_names))

    def _launch(
        self, real: Any, name: str, input_names: list[str], output_names: list[str], *,
        inputs: Sequence[Any], **launch: Any,
    ) -> list[mx.array]:  # fmt: skip
        source = generate(real, inputs, **launch)
        if self.mutate is not None:
            source = self.mutate(source)
        launched = Launched(name, source)
        self.launches.append(launched)
        shapes, dtypes = launch["output_shapes"], launch["output_dtypes"]
        if self.dry:
            return [mx.zeros(s, d) for s, d in zip(shapes, dtypes, strict=True)]
        for finding in check(source):
            raise EmulationError("check", f"{name}: {finding}")
        try:
            file = library(source, self.sanitize)
        except CompileError as error:
            raise EmulationError("compile", f"{name}: {error}") from None
        arrays = dict(zip(input_names, map(_as_numpy, inputs), strict=True))
        initial = launch.get("init_value")
        for output, shape, dtype in zip(output_names, shapes, dtypes, strict=True):
            arrays[output] = _empty(shape, dtype, initial)
        memory = _Memory(Source.parse(source), arrays, set(output_names), initial is not None)
        _run(file, memory, launch["grid"], launch["threadgroup"], self.schedule, launched)
        return [_as_mlx(memory.output(o), d) for o, d in zip(output_names, dtypes, strict=True)]


METAL_KERNEL = mx.fast.metal_kernel


@contextlib.contextmanager
def emulated(
    schedule: str = "forward",
    sanitize: str | None = None,
    mutate: Callable[[str], str] | None = None,
) -> Iterator[list[Launched]]:
    """Metal kernels run here, on the CPU, and any fault of theirs raises EmulationError.

    schedule: the order of threads between barriers and of sums: forward, reverse or random
    sanitize: None, or "address,undefined" or "thread" with that sanitizer's library preloaded
    mutate: changes the generated source before anything looks at it, to plant a fault
    Yields a list that grows by each launch.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    with _replaced(Emulation(schedule, sanitize, mutate, launches=[])) as launches:
        yield launches


def generated_sources(function: Callable[..., Any], *arrays: mx.array) -> list[str]:
    """The sources that MLX generates for the kernels that `function(*arrays)` launches."""
    with _replaced(Emulation(dry=True, launches=[])) as launches:
        mx.eval(function(*arrays))
    return list(dict.fromkeys(launched.source for launched in launches))


@contextlib.contextmanager
def _replaced(emulation: Emulation) -> Iterator[list[Launched]]:
    package = _module("mlx_pam.ops.metal")
    available = getattr(package, "available", None)
    before = mx.fast.metal_kernel
    mx.fast.metal_kernel = emulation.kernel
    if available is not None:
        package.available = lambda *_args, **_kwargs: True
    _forget_built_kernels()
    try:
        yield emulation.launches
    finally:
        mx.fast.metal_kernel = before
        if available is not None:
            package.available = available
        _forget_built_kernels()


def _forget_built_kernels() -> None:
    launch = _module("mlx_pam.ops.metal.launch")
    if launch is not None:
        launch.build.cache_clear()


def _module(name: str) -> Any:
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    return importlib.import_module(name) if found else None


class _Memory:
    """The arrays of a launch, far apart in one block, in the order of the kernel's parameters."""

    def __init__(
        self, source: Source, arrays: dict[str, np.ndarray], outputs: set[str], initialised: bool
    ) -> None:
        self.names = [name for _, name in source.buffers]
        self.arrays = [_array_of(name, arrays) for name in self.names]
        offsets = np.cumsum([GAP, *(GAP + -(-a.nbytes // 4096) * 4096 for a in self.arrays)])
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.block = np.frombuffer(mmap.mmap(-1, int(offsets[-1]), flags), np.uint8)
        self.table = (_Buffer * len(self.names))()
        self.spans = {}
        for entry, name, array, offset in zip(
            self.table, self.names, self.arrays, offsets, strict=False
        ):
            span = self.block[offset : offset + array.nbytes]
            span[:] = np.frombuffer(array.tobytes(), np.uint8)
            self.spans[name] = (span, array.dtype, array.shape)
            entry.data, entry.bytes, entry.element = span.ctypes.data, array.nbytes, array.itemsize
            entry.is_output, entry.name = name in outputs, name.encode()
            entry.initialised = initialised or name not in outputs

    def output(self, name: str) -> np.ndarray:
        span, dtype, shape = self.spans[name]
        return span.copy().view(dtype).reshape(shape)


def _array_of(parameter: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What MLX passes for a parameter: an array, or the shape, strides or rank of one."""
    if parameter in arrays:
        return arrays[parameter]
    name, _, what = parameter.rpartition("_")
    array = arrays[name]
    if what == "shape":
        return np.array(array.shape, np.int32)
    if what == "strides":
        return np.array(array.strides, np.int64) // array.itemsize
    return np.array([array.ndim], np.int32)


def _run(
    file: Path,
    memory: _Memory,
    grid: Sequence[int],
    threadgroup: Sequence[int],
    schedule: str,
    launched: Launched,
) -> None:
    if min(*grid, *threadgroup) < 1:
        raise EmulationError("launch", f"grid {grid} or threadgroup {threadgroup} has no threads")
    if np.prod(threadgroup) > 1024:
        raise EmulationError("launch", f"a threadgroup of {np.prod(threadgroup)} threads, of 1024")
    machine = ctypes.CDLL(str(file))
    call = _Launch(
        buffers=memory.table, buffer_count=len(memory.names), grid=tuple(grid),
        threadgroup=tuple(threadgroup), order=SCHEDULES.index(schedule), seed=1,
    )  # fmt: skip
    machine.emulator_launch(ctypes.byref(call))
    for name in ("threadgroup_bytes", "barriers", "matrix_products", "simd_operations"):
        setattr(launched, name, getattr(call, name))
    launched.unwritten = {b.name.decode(): b.unwritten for b in memory.table if b.is_output}
    if call.error:
        layer, _, text = call.error.decode().partition(": ")
        lines = launched.source.splitlines()
        place = functools.partial(_place, file, lines)
        raise EmulationError(layer, f"{launched.name}: {PLACE.sub(place, text)}")


def _place(file: Path, lines: list[str], match: re.Match[str]) -> str:
    """A line of the source, given as such or as the address of machine code."""
    number = int(match.group(2), 10 if match.group(1) else 16)
    if not match.group(1):
        number = _line_of_address(file, number - 1)
    return f"line {number} `{lines[number - 1].strip()}`" if 0 < number <= len(lines) else "?"


def _line_of_address(file: Path, address: int) -> int:
    command = ["addr2line", "-i", "-e", str(file), hex(address)]
    with contextlib.suppress(OSError):
        for frame in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
            if found := re.search(r"kernel\.metal:(\d+)", frame):
                return int(found.group(1))
    return 0


def _as_numpy(x: Any) -> np.ndarray:
    """A row-contiguous copy; bfloat16, which NumPy lacks, by its bits."""
    x = x if isinstance(x, mx.array) else mx.array(x)
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x, order="C")


def _as_mlx(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    return mx.array(x).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(x)


def _empty(shape: Sequence[int], dtype: mx.Dtype, initial: float | None) -> np.ndarray:
    """An output before the launch: its initial value, or else bits that make floats NaN."""
    filled = _as_numpy(mx.full(shape, 0 if initial is None else initial, dtype))
    if initial is None:
        filled = np.frombuffer(b"\xff" * filled.nbytes, filled.dtype).reshape(shape)
    return filled
