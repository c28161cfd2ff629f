"""Pointwise work fused into one pass by `torch.compile`, where there is a compiler."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable)


@functools.cache
def can_compile(device_type: str) -> bool:
    """`torch.compile` writes Triton for CUDA, and C++ for the CPU, which takes a compiler."""
    if device_type == "cpu":
        return any(shutil.which(name) for name in ("g++", "clang++"))
    return device_type == "cuda"


def fused(function: F) -> F:
    """The function, compiled for the fixed shapes that it meets where its first tensor can be.

    It is compiled at the first call, since the compiler's import takes seconds.
    """

    @functools.cache
    def compiled() -> F:
        return torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def call(first: torch.Tensor, *others):
        return (compiled() if can_compile(first.device.type) else function)(first, *others)

    return call


def as_written() -> contextlib.AbstractContextManager:
    """Inside, nothing is compiled for another shape: what has been compiled runs as written."""
    if "torch._dynamo" not in sys.modules:  # nothing has
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
