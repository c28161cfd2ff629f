"""One launch of a compiled kernel: arrays laid out, threads run, faults put into words."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .source import Source

SCHEDULES = ("forward", "reverse", "random")
THREADS = 1024  # of a threadgroup
GAP = 1 << 24  # bytes between arrays: an index past one does not meet the next
PLACE = re.compile(r"@\{(L?)([0-9a-f]+)\}")


class LaunchError(Exception):
    """A fault of the kernel; `layer` is the kind of fault."""

    def __init__(self, layer: str, text: str) -> None:
        super().__init__(text)
        self.layer = layer


@dataclass(frozen=True)
class Counts:
    """threadgroup_bytes: of one threadgroup. The others are sums over simdgroups of the grid."""

    threadgroup_bytes: int = 0
    barriers: int = 0
    matrix_products: int = 0
    simd_operations: int = 0


class _Buffer(ctypes.Structure):  # as in msl/state.h
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
        ("block", ctypes.c_void_p),
        ("block_bytes", ctypes.c_uint64),
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
class _Array:
    """The memory that an array spans, and how the array lies in it."""

    memory: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    @classmethod
    def of(cls, x: Any, contiguous: bool) -> _Array:
        x = x if isinstance(x, mx.array) else mx.array(x)
        view = np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x, copy=False)
        if contiguous or min(view.strides, default=0) < 0:
            view = np.ascontiguousarray(view)
        strides = tuple(stride // view.itemsize for stride in view.strides)
        reach = sum((n - 1) * stride for n, stride in zip(view.shape, strides, strict=True))
        span = np.lib.stride_tricks.as_strided(
            view, (reach + 1 if view.size else 0,), (view.itemsize,), writeable=False
        )
        return cls(span.copy(), view.shape, strides)

    @classmethod
    def output(cls, shape: Sequence[int], dtype: mx.Dtype, initial: float | None) -> _Array:
        """An array of an initial value, or without one of bits that make each float a NaN."""
        array = cls.of(mx.full(shape, 0 if initial is None else initial, dtype), True)
        if initial is None:
            array.memory.view(np.uint8)[:] = 0xFF
        return array

    def attribute(self, name: str) -> np.ndarray:
        values = {"shape": (self.shape, np.int32), "strides": (self.strides, np.int64)}
        return np.array(*values.get(name, ([len(self.shape)], np.int32)))


def launch(
    file: Path, source: str, input_names: Sequence[str], output_names: Sequence[str],
    contiguous: bool, schedule: str, *, inputs: Sequence[Any],
    output_shapes: Sequence[Sequence[int]], output_dtypes: Sequence[mx.Dtype],
    grid: Sequence[int], threadgroup: Sequence[int], init_value: float | None = None,
    **_: Any,
) -> tuple[list[mx.array], Counts]:  # fmt: skip
    """Outputs of the kernel in a library, and what it counted; raises `LaunchError`."""
    if min(*grid, *threadgroup) < 1 or np.prod(threadgroup) > THREADS:
        rule = f"each must be >= 1, and a threadgroup has up to {THREADS} threads"
        raise LaunchError("launch", f"grid {grid}, threadgroup {threadgroup}: {rule}")
    arrays = {n: _Array.of(x, contiguous) for n, x in zip(input_names, inputs, strict=True)}
    for name, *output in zip(output_names, output_shapes, output_dtypes, strict=True):
        arrays[name] = _Array.output(*output, init_value)
    buffers = {name: _memory_of(name, arrays) for _, name in Source.parse(source).buffers}
    block, places = _far_apart(buffers)
    table = (_Buffer * len(places))()
    for entry, (name, place) in zip(table, places.items(), strict=True):
        entry.data, entry.bytes, entry.element = place.ctypes.data, place.nbytes, place.itemsize
        entry.name, entry.is_output = name.encode(), name in output_names
        entry.initialised = name not in output_names or init_value is not None
    call = _Launch(block.ctypes.data, block.nbytes, table, len(table))
    call.grid[:], call.threadgroup[:] = grid, threadgroup
    call.order, call.seed = SCHEDULES.index(schedule), 1
    ctypes.CDLL(str(file)).emulator_launch(ctypes.byref(call))
    _judge(call, table, file, source)
    outputs = [
        _as_mlx(places[name].reshape(shape), dtype)
        for name, shape, dtype in zip(output_names, output_shapes, output_dtypes, strict=True)
    ]
    return outputs, Counts(**{count.name: getattr(call, count.name) for count in fields(Counts)})


def _judge(call: _Launch, table: Iterable[_Buffer], file: Path, source: str) -> None:
    """Raise what a launch found."""
    if call.error:
        layer, _, text = call.error.decode().partition(": ")
        raise LaunchError(layer, _with_lines(text, file, source.splitlines()))
    for entry in table:
        if entry.unwritten:
            which = f"{entry.unwritten} of {entry.bytes // entry.element} elements"
            raise LaunchError("unwritten", f"no thread writes {which} of {entry.name.decode()}")


def _memory_of(parameter: str, arrays: dict[str, _Array]) -> np.ndarray:
    """What MLX passes for a parameter: an array, or the shape, strides or rank of one."""
    if parameter in arrays:
        return arrays[parameter].memory
    name, _, attribute = parameter.rpartition("_")
    return arrays[name].attribute(attribute)


def _far_apart(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A block of memory, taken up no further than by copies of the arrays in it, and these."""
    ends = np.cumsum([GAP, *(GAP + -(-array.nbytes // 4096) * 4096 for array in arrays.values())])
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    block = np.frombuffer(mmap.mmap(-1, int(ends[-1]), flags), np.uint8)
    copies = {}
    for (name, array), begin in zip(arrays.items(), ends.tolist(), strict=False):
        copies[name] = block[begin : begin + array.nbytes].view(array.dtype)
        copies[name][:] = array
    return block, copies


def _as_mlx(x: np.ndarray, dtype: mx.Dtype) -> mx.array:
    return mx.array(x).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(x)


def _with_lines(text: str, file: Path, lines: list[str]) -> str:
    """A fault with the lines of the source in place of their numbers, or of machine code's."""

    def line(match: re.Match[str]) -> str:
        is_line, digits = match.groups()
        number = int(digits) if is_line else _line_of(file, int(digits, 16) - 1)
        if not 0 < number <= len(lines):
            return "a line that is not known"
        return f"line {number} `{lines[number - 1].strip()}`"

    return PLACE.sub(line, text)


def _line_of(file: Path, address: int) -> int:
    command = ["addr2line", "-i", "-e", str(file), hex(address)]
    with contextlib.suppress(OSError):  # part of the compiler's tools, but not of every
        frames = subprocess.run(command, capture_output=True, text=True).stdout
        if found := re.search(r"kernel\.metal:(\d+)", frames):
            return int(found.group(1))
    return 0
