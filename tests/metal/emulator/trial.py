"""One launch of a kernel with one output, as the emulator's own tests need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np


def trial(
    source: str,
    inputs: Mapping[str, Any],
    shape: Sequence[int],
    dtype: mx.Dtype = mx.float32,
    *,
    grid: int | tuple[int, int, int] = 32,
    threadgroup: int | tuple[int, int, int] = 32,
    template: Mapping[str, Any] | None = None,
    header: str = "",
    init_value: float | None = None,
    **options: Any,
) -> np.ndarray:
    """The output `y` of a kernel's body; a number stands for so many threads along x.

    inputs: arrays of MLX or NumPy, or numbers, by name
    options: of `mx.fast.metal_kernel`
    bfloat16 comes back as float32, which NumPy has.
    """
    kernel = mx.fast.metal_kernel(
        name="trial", input_names=list(inputs), output_names=["y"], source=source, header=header,
        **options,
    )  # fmt: skip
    call = {} if init_value is None else {"init_value": init_value}
    (y,) = kernel(
        inputs=[mx.array(x) if isinstance(x, np.ndarray) else x for x in inputs.values()],
        template=list((template or {}).items()),
        grid=(grid, 1, 1) if isinstance(grid, int) else grid,
        threadgroup=(threadgroup, 1, 1) if isinstance(threadgroup, int) else threadgroup,
        output_shapes=[tuple(shape)],
        output_dtypes=[dtype],
        **call,
    )
    return np.array(y.astype(mx.float32) if dtype == mx.bfloat16 else y)
