"""The rules, looked up with clang's front end for C++ for OpenCL.

OpenCL has Metal's address spaces under other names, and half; `msl/check.h` declares the rest.
Beside clang's own errors stand the rules of Metal that OpenCL does not have.
"""

from __future__ import annotations

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
    "-Wno-undefined-internal", "-Wno-missing-braces",
)  # fmt: skip
THREADGROUP_MEMORY = 32768  # bytes, of every Apple GPU
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
    yield from _diagnostics(unit)
    yield from _threadgroup_memory(unit)
    yield from _names(unit)
    for cursor, parent in _walk(unit.cursor):
        spelling, line = cursor.type.spelling, cursor.location.line
        if cursor.kind in TYPED and "__generic" in spelling:
            name = cursor.spelling or spelling.replace("__generic ", "")
            yield "address space", f"'{name}' has none", line
        unwritten = cursor.kind == CursorKind.UNEXPOSED_EXPR and parent.kind not in CASTS
        if unwritten and _is_bfloat(cursor.type) and not all(map(_is_bfloat, _types(cursor))):
            yield "bfloat", NO_BFLOAT, line
    yield from divergent_barriers(unit, FILE)


def _diagnostics(unit: TranslationUnit) -> Broken:
    for diagnostic in unit.diagnostics:
        message, line = diagnostic.spelling, diagnostic.location.line
        if "casting to single precision" in message:
            continue  # in Metal a literal without suffix is a float
        if diagnostic.option == "-Wimplicit-float-conversion":
            if "__bf16" in message.rpartition(" to ")[2]:  # to half it is allowed
                yield "bfloat", NO_BFLOAT, line
        elif "'double'" in message:
            yield "double", "Metal has no double", line
        elif diagnostic.severity >= Diagnostic.Warning:
            yield "type", message, line


def _threadgroup_memory(unit: TranslationUnit) -> Broken:
    total = 0
    for cursor, _ in _walk(unit.cursor):
        if cursor.kind == CursorKind.VAR_DECL and cursor.type.spelling.startswith("__local"):
            total += max(0, cursor.type.get_size())
            if total > THREADGROUP_MEMORY:
                message = f"{total} bytes with '{cursor.spelling}', of {THREADGROUP_MEMORY}"
                yield "threadgroup memory", message, cursor.location.line


def _names(unit: TranslationUnit) -> Broken:
    taken = names_taken(ARGUMENTS)
    for cursor in unit.cursor.get_children():
        if cursor.spelling in taken and cursor.location.file and cursor.location.file.name == FILE:
            yield "name", f"MLX has a '{cursor.spelling}' of its own", cursor.location.line


def _walk(cursor: Cursor) -> Iterator[tuple[Cursor, Cursor]]:
    """Every cursor of the kernel's own file, with its parent."""
    for child in cursor.get_children():
        file = child.location.file
        if file is None or file.name == FILE:
            yield child, cursor
            yield from _walk(child)


def _types(cursor: Cursor) -> list[Type]:
    return [child.type for child in cursor.get_children()]


def _is_bfloat(kind: Type) -> bool:
    return kind.get_canonical().spelling.split(" ")[-1] == "__bf16"
