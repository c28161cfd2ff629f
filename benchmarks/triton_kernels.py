"""What each Triton kernel takes of a GPU, by its compiler: no GPU is needed.

python -m mlx_pam.benchmarks.triton_kernels
python -m mlx_pam.benchmarks.triton_kernels --arch 90 --d 128 --dtype bfloat16 --planes 1 2

Registers are per thread, of 255; spills are the bytes of a thread's stack, which holds what found
no register; shared memory is bytes per program; warps/SM fit one multiprocessor side by side.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from rich import box
from rich.console import Console
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mlx_pam.benchmarks import machine, rows
from mlx_pam.torch import kernels
from mlx_pam.torch.kernels import operator
from mlx_pam.torch.kernels.chunks import chunk_outputs, chunk_states
from mlx_pam.torch.kernels.gradients import chunk_gradients
from mlx_pam.torch.kernels.step import token_step

RESULTS = rows.RESULTS / "triton_kernels.jsonl"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in kernels.DTYPES}
TRITON_TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}

FLOAT32 = {"log_decay", "dlog_decay", "first", "last", "states", "adjoints", "state", "new_state"}
"""Arrays that are float32 whatever the type of q, k and v."""
INTEGERS = {"T", "H", "n"}

REGISTERS = 65536
SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024}
MOST_PROGRAMS, MOST_WARPS = 32, 64
"""Of one multiprocessor of the A100 (80) and the H100 (90)."""


class Kernel(NamedTuple):
    """A kernel as the operator launches it."""

    name: str
    function: Any
    settings: dict[str, Any]


def launched(dtype: torch.dtype, planes: int, d: int) -> Iterator[Kernel]:
    """Every kernel that the operator launches on inputs of one type and shape."""
    forward, backward = operator.ARITHMETIC[dtype][2:]
    scan, chunk = operator.scan_settings, operator.chunk_settings
    yield Kernel("states, forward", chunk_states, scan(dtype, planes, d, forward, False))
    yield Kernel("outputs", chunk_outputs, chunk(dtype, planes, d, forward))
    yield Kernel("states, backward", chunk_states, scan(dtype, planes, d, backward, False))
    yield Kernel("adjoints", chunk_states, scan(dtype, planes, d, backward, True))
    yield Kernel("gradients", chunk_gradients, chunk(dtype, planes, d, backward))
    yield Kernel("step", token_step, operator.step_settings(planes, d))


def resources(kernel: Kernel, dtype: torch.dtype, arch: int) -> dict[str, Any]:
    """Compile one kernel for one architecture and read its machine code's header."""
    names = kernel.function.arg_names
    constants = {name: value for name, value in kernel.settings.items() if name in names}
    options = {name: value for name, value in kernel.settings.items() if name not in names}
    signature = {name: _type(name, constants, dtype) for name in names}
    source = ASTSource(
        kernel.function,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={  # what a launch finds of PyTorch's allocations
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if signature[name].startswith("*")
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    used = _machine_code(compiled.asm)
    shared = compiled.metadata.shared
    warps = compiled.metadata.num_warps
    granted = -(-used["registers"] // 8) * 8 * 32 * warps
    programs = min(
        MOST_PROGRAMS,
        MOST_WARPS // warps,
        REGISTERS // granted,
        SHARED_BYTES[arch] // (shared + 1024),
    )
    return used | {"shared_bytes": shared, "warps": warps, "warps_at_once": programs * warps}


def _type(name: str, constants: dict[str, Any], dtype: torch.dtype) -> str:
    if name in constants:
        return "constexpr"
    if name in INTEGERS:
        return "i32"
    return TRITON_TYPES[torch.float32 if name in FLOAT32 else dtype]


def _machine_code(stages: dict[str, Any]) -> dict[str, Any]:
    """Registers, stack and the matrix instruction of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(stages["cubin"])
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", report).groups()
    matrix = re.search(r"wgmma\.mma_async|mma\.sync", stages["ptx"])
    return {
        "registers": int(registers),
        "spill_bytes": int(stack),
        "matrix_unit": matrix[0].split(".")[0] if matrix else "none",
    }


def every_kernel(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per architecture, type, planes, d and kernel."""
    about = {"date": machine.describe()["date"], "commit": machine.describe()["commit"]}
    about["triton"] = triton.__version__
    cases = itertools.product(options.arch, options.dtype, options.planes, options.d)
    for arch, name, planes, d in cases:
        for kernel in launched(DTYPES[name], planes, d):
            shape = {key: kernel.settings.get(key) for key in ("C", "BLOCK", "ROWS")}
            case = {"arch": arch, "dtype": name, "planes": planes, "d": d, "kernel": kernel.name}
            yield about | case | shape | resources(kernel, DTYPES[name], arch)


def show(found: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table; a kernel that spills stands out."""
    columns = {
        "sm": "arch", "type": "dtype", "planes": "planes", "d": "d", "kernel": "kernel", "C": "C",
        "block": "BLOCK", "warps": "warps", "registers": "registers", "spills": "spill_bytes",
        "shared": "shared_bytes", "warps/SM": "warps_at_once", "products": "matrix_unit",
    }  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in ("type", "kernel") else "right")
    for row in found:
        cells = ["-" if row[key] is None else str(row[key]) for key in columns.values()]
        table.add_row(*cells, style="bold red" if row["spill_bytes"] else None)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--arch", type=int, nargs="+", default=[80, 90], choices=SHARED_BYTES)
    add("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    add("--planes", type=int, nargs="+", default=[2], choices=[1, 2], help="2 complex, 1 real")
    add("--d", type=int, nargs="+", default=[16, 64], choices=kernels.WIDTHS, help="head width")
    add("--out", type=Path, default=RESULTS, help="file to which rows are added as JSON lines")
    options = parser.parse_args()
    console = Console()
    with console.status("compiling"):
        found = list(every_kernel(options))
    show(found, console)
    rows.add(options.out, found)


if __name__ == "__main__":
    main()
