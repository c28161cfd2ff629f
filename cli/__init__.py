"""The command `mlx_pam`: finds the named command and hands it the rest of the line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from mlx_pam.errors import ConfigError, MlxPamError

COMMANDS = {
    "train": ("mlx_pam.cli.train", "train a model, or go on with one"),
    "generate": ("mlx_pam.cli.generate", "write text from a checkpoint"),
    "evaluate": ("mlx_pam.cli.evaluate", "loss, perplexity and bits per byte of a checkpoint"),
    "selftest": ("mlx_pam.cli.selftest", "compare the forms of retrieval on this machine"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    name, *rest = sys.argv[1:] if argv is None else argv
    module, _ = COMMANDS[name]
    try:
        return importlib.import_module(module).main(rest) or 0
    except MlxPamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
