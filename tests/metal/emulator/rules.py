"""The rules, looked up with clang's front end for C++ for OpenCL.

OpenCL has Metal's address spaces under other names, and half; `msl/check.h` declares the rest.
Beside clang's own errors stand the rules of Metal that OpenCL does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from clang.cindex import Cursor, CursorKind, Diagnostic, Index, TranslationUnit, Type

from .divergence import divergent_barriers
from .prelude import names_taken

Broken = Iterator[tuple[str, str, int]]  # rule, message, line

FILE = "kernel.metal"
ARGUMENTS = (
    "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc",
    "-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64",
    # a processor for which clang has half and bfloat, whatever this one is
    "-target", "x86_64-linux-gnu",
    "-include", str(Path(__file__).with_name("msl") / "check.h"),
    "-Wall", "-Wimplicit-float-conversion", "-Wno-unused", "-Wno-unused-value",
    "-Wno-unknown-attributes", "-Wno-unknown-pragmas", "-Wno-undefined-inline",
    "-Wno-undefined-internal", "-Wno-missing-braces", "-Wno-implicit-int-float-conversion",
)  # fmt: skip
BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
THREADGROUP_MEMORY = 32768  # bytes, of every Apple GPU
OTHER_NUMBERS = {
    "float", "half", "bool", "char", "unsigned char", "short", "unsigned short", "int",
    "unsigned int", "long", "unsigned long",
}  # fmt: skip
NO_BFLOAT = "no number turns into a bfloat by itself: static_cast it"

CASTS = {
    CursorKind.CSTYLE_CAST_EXPR,
    CursorKind.CXX_FUNCTIONAL_CAST_EXPR,
    CursorKind.CXX_STATIC_CAST_EXPR,
    CursorKind.CXX_REINTERPRET_CAST_EXPR,
    CursorKind.CXX_CONST_CAST_EXPR,
}
TYPED = CASTS | {
    CursorKind.VAR_DECL,
    CursorKind.PARM_DECL,
    CursorKind.FIELD_DECL,
    CursorKind.FUNCTION_DECL,
}


def broken(code: str) -> Broken:
    """Rule, message and line of each rule that the translation of a source breaks."""
    unit = Index.create().parse(FILE, args=list(ARGUMENTS), unsaved_files=[(FILE, code)])
    own = [
        c for c in unit.cursor.get_children() if c.location.file and c.location.file.name == FILE
    ]
    pairs = [pair for cursor in own for pair in _walk(cursor, unit.cursor)]
    shared = [c for c, _ in pairs if c.kind == CursorKind.VAR_DECL and _is_shared(c)]
    yield from _diagnostics(unit, {variable.spelling for variable in shared})
    yield from _threadgroup_memory(shared)
    yield from _forgotten_barrier(shared, [cursor for cursor, _ in pairs])
    yield from _names(own)
    for cursor, parent in pairs:
        if cursor.kind in TYPED and "__generic" in (spelling := cursor.type.spelling):
            name = cursor.spelling or spelling.replace("__generic ", "")
            yield "address space", f"'{name}' has none", cursor.location.line
        if parent.kind not in CASTS and _becomes_bfloat(cursor):
            yield "bfloat", NO_BFLOAT, cursor.location.line
    yield from divergent_barriers(own)


def _diagnostics(unit: TranslationUnit, shared: set[str]) -> Broken:
    for diagnostic in unit.diagnostics:
        message, line, option = diagnostic.spelling, diagnostic.location.line, diagnostic.option
        if "casting to single precision" in message:
            continue  # in Metal a literal without suffix is a float
        if "uninitialized" in option and message.split("'")[1] in shared:
            continue  # another thread may have written it
        if option == "-Wimplicit-float-conversion":
            if "__bf16" in message.rpartition(" to ")[2]:  # to half it is allowed
                yield "bfloat", NO_BFLOAT, line
        elif "'double'" in message:
            yield "double", "Metal has no double", line
        elif diagnostic.severity >= Diagnostic.Warning:
            yield "type", message, line


def _threadgroup_memory(variables: list[Cursor]) -> Broken:
    total = 0
    for variable in variables:
        total += max(0, variable.type.get_size())
        if total > THREADGROUP_MEMORY:
            message = f"{total} bytes with '{variable.spelling}', of {THREADGROUP_MEMORY}"
            yield "threadgroup memory", message, variable.location.line


def _forgotten_barrier(variables: list[Cursor], cursors: list[Cursor]) -> Broken:
    """Threadgroup memory is for what one thread tells another, and that takes a barrier."""
    if any(c.kind == CursorKind.CALL_EXPR and c.spelling in BARRIERS for c in cursors):
        return
    used = [c.referenced for c in cursors if c.kind == CursorKind.DECL_REF_EXPR]
    for variable in variables:
        if used.count(variable) > 1:
            message = f"no barrier orders what is done to '{variable.spelling}'"
            yield "forgotten barrier", message, variable.location.line


def _names(own: list[Cursor]) -> Broken:
    taken = names_taken(ARGUMENTS)
    for cursor in own:
        if cursor.spelling in taken:
            yield "name", f"MLX has a '{cursor.spelling}' of its own", cursor.location.line


def _walk(cursor: Cursor, parent: Cursor) -> Iterator[tuple[Cursor, Cursor]]:
    """A cursor and all below it, each with its parent."""
    yield cursor, parent
    for child in cursor.get_children():
        yield from _walk(child, cursor)


def _is_shared(variable: Cursor) -> bool:
    return variable.type.spelling.startswith("__local")


def _becomes_bfloat(cursor: Cursor) -> bool:
    """Whether a number turns into a bfloat here, in an expression that clang added or a list."""
    if cursor.kind == CursorKind.UNEXPOSED_EXPR:
        target = cursor.type
    elif cursor.kind == CursorKind.INIT_LIST_EXPR:
        target = cursor.type.get_array_element_type()
    else:
        return False
    return _name(target) == "__bf16" and any(
        _name(child.type) in OTHER_NUMBERS for child in cursor.get_children()
    )


def _name(kind: Type) -> str:
    return re.sub(r"\b(const|__\w+ (?=\S))", "", kind.get_canonical().spelling).strip()
