"""Metal kernels without a Mac: MLX's own generated source, checked, compiled and run on the CPU.

`emulated()` replaces `mx.fast.metal_kernel`; every launch inside passes all layers or raises
EmulationError. docs/emulator.md says what each layer can find and what none can.
"""

from __future__ import annotations

from .check import Finding, check
from .environment import require, sanitizer_environment
from .run import EmulationError, Launched, emulated, generated_sources

__all__ = [
    "EmulationError",
    "Finding",
    "Launched",
    "check",
    "emulated",
    "generated_sources",
    "require",
    "sanitizer_environment",
]
