"""The names that MLX's own prelude, which it puts before every kernel, takes for itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
from clang.cindex import Cursor, CursorKind, Index

INCLUDE = Path(mx.__file__).parent / "include"
PRELUDE = "mlx/backend/metal/kernels/utils.h"


@functools.cache
def names_taken(arguments: tuple[str, ...]) -> frozenset[str]:
    """Global names of the headers that come with this MLX; none if it comes without.

    arguments: of the parser, with which a kernel is read
    """
    if not (INCLUDE / PRELUDE).exists():
        return frozenset()
    file, text = "prelude.metal", f'#include "{PRELUDE}"\n'
    arguments = [*arguments, "-I", str(INCLUDE)]
    # the language's own headers are not here: what needs them is not understood, its name is
    unit = Index.create().parse(file, args=arguments, unsaved_files=[(file, text)])
    return frozenset(_names(unit.cursor))


def _names(unit: Cursor) -> Iterator[str]:
    for cursor in unit.get_children():
        file, name = cursor.location.file, cursor.spelling
        own = file is not None and str(INCLUDE) in file.name
        if own and name.isidentifier() and cursor.kind != CursorKind.NAMESPACE:
            yield name
