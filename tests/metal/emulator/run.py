"""`mx.fast.metal_kernel` on the CPU: generate, check, compile and run each launch, and judge it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlx_pam.ops import metal
from mlx_pam.ops.metal.launch import build

from .build import CompileError, library
from .check import check
from .environment import check_sanitizer
from .launch import SCHEDULES, Counts, LaunchError, launch
from .source import generate

METAL_KERNEL = mx.fast.metal_kernel


class EmulationError(Exception):
    """A kernel is wrong, or cannot be shown to be right. `layer` is what found it."""

    def __init__(self, layer: str, text: str) -> None:
        super().__init__(f"{layer}: {text}")
        self.layer = layer


@dataclass
class Launched:
    """A launch that was carried out: the kernel's name, its source, and what it did."""

    name: str
    source: str
    counts: Counts = field(default_factory=Counts)


@dataclass
class _Emulation:
    schedule: str = "forward"
    sanitize: str | None = None
    mutate: Callable[[str], str] = str
    checked: bool = True
    carried_out: bool = True  # or else outputs are zeros
    launches: list[Launched] = field(default_factory=list)

    def metal_kernel(
        self, name: str, input_names: Sequence[str], output_names: Sequence[str],
        *args: Any, **options: Any,
    ) -> Callable[..., list[mx.array]]:  # fmt: skip
        """In the place of `mx.fast.metal_kernel`; MLX itself judges the arguments."""
        real = METAL_KERNEL(name, input_names, output_names, *args, **options)
        contiguous = options.get("ensure_row_contiguous", args[2] if len(args) > 2 else True)

        def kernel(**call: Any) -> list[mx.array]:
            source = self.mutate(generate(real, **call))
            launched = Launched(name, source)
            self.launches.append(launched)
            if not self.carried_out:
                shapes, dtypes = call["output_shapes"], call["output_dtypes"]
                return [mx.zeros(*output) for output in zip(shapes, dtypes, strict=True)]
            for finding in check(source) if self.checked else ():
                raise EmulationError("check", f"{name}: {finding}")
            try:
                file = library(source, self.sanitize)
                outputs, launched.counts = launch(
                    file, source, input_names, output_names, contiguous, self.schedule, **call
                )
            except CompileError as error:
                raise EmulationError("compile", f"{name}: {error}") from None
            except LaunchError as error:
                raise EmulationError(error.layer, f"{name}: {error}") from None
            return outputs

        return kernel


@contextlib.contextmanager
def emulated(
    schedule: str = "forward",
    sanitize: str | None = None,
    mutate: Callable[[str], str] | None = None,
    *,
    checked: bool = True,
) -> Iterator[list[Launched]]:
    """Metal kernels run here, on the CPU, and any fault of theirs raises `EmulationError`.

    schedule: the order of threads between barriers, and of sums: forward, reverse or random
    sanitize: None, or "address,undefined" or "thread" under `sanitizer_environment`
    mutate: changes the generated source before anything looks at it, to plant a fault
    checked: whether what `check` finds is a fault too
    Yields a list that grows by each launch.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if sanitize is not None:
        check_sanitizer(sanitize)
    with _replaced(_Emulation(schedule, sanitize, mutate or str, checked)) as launches:
        yield launches


def generated_sources(function: Callable[..., Any], *arrays: mx.array) -> list[str]:
    """The sources that MLX generates for the kernels that `function(*arrays)` launches.

    Nothing is compiled or run: to the function, every output of a kernel is 0.
    """
    with _replaced(_Emulation(carried_out=False)) as launches:
        mx.eval(function(*arrays))
    return list(dict.fromkeys(launched.source for launched in launches))


@contextlib.contextmanager
def _replaced(emulation: _Emulation) -> Iterator[list[Launched]]:
    real, available = mx.fast.metal_kernel, metal.available
    mx.fast.metal_kernel, metal.available = emulation.metal_kernel, lambda: True
    build.cache_clear()
    try:
        yield emulation.launches
    finally:
        mx.fast.metal_kernel, metal.available = real, available
        build.cache_clear()
