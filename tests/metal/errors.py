"""Prints the errors of every kernel by type, width and length: `python tests/metal/errors.py`.

On a Mac they are those of its GPU, elsewhere those of the emulator.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as in the tests: `import oracle`

import mlx.core as mx
from metal.fused_form import TOLERANCES, errors, fused, in_chunks

from mlx_pam.ops import metal
from mlx_pam.ops.metal import operator

WIDTHS = (8, 24, 64, 128)
LENGTHS = (1, 8, 32, 33, 200, 513)
DECAYS = ("smooth", "mixed", "cliff")
OUTPUTS = {
    "token_steps": ("y", "S_T"),
    "chunk_states": ("S_T", "gradient of state"),
    "chunk_outputs": ("y",),
    "chunk_gradients": tuple(f"gradient of {name}" for name in ("q", "k", "v", "log_decay")),
}


def largest(kernel: str, dtype: mx.Dtype, dim: int, time: int) -> float | None:
    """Over complex and real numbers, all decays, and all that the kernel gives."""
    if kernel == "token_steps" and time > operator.FEW_TOKENS:
        return None
    function = fused if kernel == "token_steps" else in_chunks
    return max(
        _errors(is_complex, time, dim, decay, dtype, function)[name]
        for is_complex in (True, False)
        for decay in DECAYS
        for name in OUTPUTS[kernel]
    )


_kept: dict[tuple, dict[str, float]] = {}


def _errors(is_complex: bool, time: int, *rest) -> dict[str, float]:
    """One run answers for all kernels that take part in it.

    There are heads enough for 32 decays: the largest of a few gradients may be small by chance.
    """
    question = (is_complex, time, *rest)
    if question not in _kept:
        _kept[question] = errors(*question, heads=-(-32 // time))
    return _kept[question]


def rows() -> Iterator[str]:
    """A table in Markdown, by rows."""
    yield "| kernel | type | d | " + " | ".join(f"T = {time}" for time in LENGTHS) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(LENGTHS)
    for dtype in TOLERANCES:
        name = str(dtype).removeprefix("mlx.core.")
        for dim in WIDTHS:
            for kernel in OUTPUTS:
                found = [largest(kernel, dtype, dim, time) for time in LENGTHS]
                cells = ["" if error is None else f"{error:.1e}" for error in found]
                yield f"| `{kernel}` | {name} | {dim} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table as its rows are found."""
    if metal.available():
        place, on_machine = "this Mac's GPU", contextlib.nullcontext()
    else:
        from metal.emulator import emulated

        place, on_machine = "the emulator", emulated()
    print(f"MLX {version('mlx')}, {place}")
    with on_machine:
        for row in rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
