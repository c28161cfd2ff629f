"""Code compiled by `torch.compile` where there is a compiler, and run as written where it fails."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn

from mlx_pam import compilers

F = TypeVar("F", bound=Callable)

# Shapes that one function is compiled for; PyTorch stops at 8, which a server's batches go beyond.
MOST_SHAPES = 64
# Damaged libraries that are removed before the compiler is given up.
MOST_REMOVALS = 16


@functools.cache
def can_compile(device_type: str) -> bool:
    """`torch.compile` writes Triton for CUDA, and C++ for the CPU, which takes a compiler."""
    if device_type == "cpu":
        return any(shutil.which(name) for name in ("g++", "clang++"))
    return device_type == "cuda"


class _Compiler:
    """PyTorch's, until it fails: then nothing is compiled any more in this process."""

    works = True


def compiled(function: F) -> F:
    """The function, compiled for the fixed shapes that it meets.

    A library in the compiler's cache that is cut short, as a killed process leaves it, is removed
    and made again. Where the compiler fails otherwise, a notice says why, once, and this function
    and all others run as written.
    """
    by_compiler = torch.compile(function, dynamic=False)
    _configure()

    @functools.wraps(function)
    def call(*arguments, **options):
        for _ in range(MOST_REMOVALS):
            if not _Compiler.works:
                break
            try:
                return by_compiler(*arguments, **options)
            except Exception as error:
                if not isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
                    raise
                library = compilers.removed_library(error)
                if library is None:
                    _Compiler.works = False
                    why = compilers.reason(getattr(error, "inner_exception", error))
                    compilers.note(f"PyTorch runs uncompiled, which is slower: {why}")
                else:
                    compilers.note(f"{library} was cut short and is compiled again")
        return function(*arguments, **options)

    return call


def compile_layers(layers: Iterable[nn.Module]) -> None:
    """Have each layer run `compiled`; layers of one kind and shape share what is compiled."""
    for layer in layers:
        layer.forward = compiled(type(layer).forward.__get__(layer))


def fused(function: F) -> F:
    """The function, `compiled` where its first tensor can be.

    It is compiled at the first call, since the compiler's import takes seconds.
    """

    @functools.cache
    def by_compiler() -> F:
        return compiled(function)

    @functools.wraps(function)
    def call(first: torch.Tensor, *others):
        return (by_compiler() if can_compile(first.device.type) else function)(first, *others)

    return call


def as_written() -> contextlib.AbstractContextManager:
    """Inside, nothing is compiled for another shape: what has been compiled runs as written."""
    if "torch._dynamo" not in sys.modules:  # nothing has
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


@functools.cache  # once
def _configure() -> None:
    """Many shapes; a notice in our words beyond them; backward passes that fail before any runs."""
    torch._dynamo.config.recompile_limit = max(MOST_SHAPES, torch._dynamo.config.recompile_limit)
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_in_our_words)
    if hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):
        torch._functorch.config.force_non_lazy_backward_lowering = True


def _in_our_words(record: logging.LogRecord) -> bool:
    """Whether PyTorch's own words may be logged: not where we have a notice in their place."""
    if not str(record.msg).startswith("torch._dynamo hit config."):
        return True
    compilers.note(f"more than {MOST_SHAPES} shapes: those to come run uncompiled, which is slower")
    return False
