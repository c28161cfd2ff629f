"""Phase-Associative Memory language models on MLX; the names below are the whole public surface.

Each is imported when it is first used, so that `import mlx_pam` costs milliseconds and needs no
array library.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_pam.generate import generate, stream
    from mlx_pam.language_model import load
    from mlx_pam.text_state import load_state
    from mlx_pam.training.loop import train

__version__ = "0.1.0"
__all__ = ["__version__", "generate", "load", "load_state", "stream", "train"]

_HOME = {
    "generate": "mlx_pam.generate",
    "load": "mlx_pam.language_model",
    "load_state": "mlx_pam.text_state",
    "stream": "mlx_pam.generate",
    "train": "mlx_pam.training.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _Package(ModuleType):
    """A package that keeps the function `generate` where importing the module of that name ends."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
