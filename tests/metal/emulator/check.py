"""What a compiler for Metal would refuse, found by clang's front end for C++ for OpenCL.

OpenCL has Metal's address spaces under other names and half as a type; `msl/check.h` declares the
rest. Beside clang's own errors, rules that OpenCL does not have are looked up in the syntax tree.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clang import cindex

from .divergence import divergent_barriers
from .source import Source

HEADER = Path(__file__).with_name("msl") / "check.h"
FILE = "kernel.metal"
NO_DOUBLE = "-cl_khr_fp64,-__opencl_c_fp64"
ARGUMENTS = [
    "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-Xclang", f"-cl-ext={NO_DOUBLE}",
    # a processor of which clang has half and bfloat, whatever this one is
    "-target", "x86_64-linux-gnu", "-include", str(HEADER),
    "-Wall", "-Wimplicit-float-conversion", "-Wno-unused", "-Wno-unused-value",
    "-Wno-unknown-attributes", "-Wno-unknown-pragmas", "-Wno-undefined-inline",
    "-Wno-undefined-internal", "-Wno-missing-braces",
]  # fmt: skip
THREADGROUP_MEMORY = 32768  # bytes, of every Apple GPU
# a component list in parentheses, which OpenCL's vectors lack
CONSTRUCTED = re.compile(
    r"\b((?:metal::)?(?:(?:float|half|bfloat|u?char|u?short|u?int|u?long)[234]|vec<[^<>;]*>))\s*\("
)
CASTS = {
    cindex.CursorKind.CSTYLE_CAST_EXPR,
    cindex.CursorKind.CXX_FUNCTIONAL_CAST_EXPR,
    cindex.CursorKind.CXX_STATIC_CAST_EXPR,
    cindex.CursorKind.CXX_REINTERPRET_CAST_EXPR,
    cindex.CursorKind.CXX_CONST_CAST_EXPR,
}
DECLARATIONS = {
    cindex.CursorKind.VAR_DECL,
    cindex.CursorKind.PARM_DECL,
    cindex.CursorKind.FIELD_DECL,
    cindex.CursorKind.FUNCTION_DECL,
}


@dataclass(frozen=True)
class Finding:
    """rule: what is broken; line and text: where in the source."""

    rule: str
    message: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}, at line {self.line} `{self.text}`"


@functools.lru_cache(maxsize=1024)
def check(source: str) -> tuple[Finding, ...]:
    """What is wrong with a source that MLX generated; empty if nothing was found."""
    unit = cindex.Index.create().parse(
        FILE, args=ARGUMENTS, unsaved_files=[(FILE, translation(source))]
    )
    lines = source.splitlines()
    found = {}
    for rule, message, line in [*_diagnostics(unit), *_rules(unit), *divergent_barriers(unit, FILE)]:
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        found.setdefault((rule, message, line), Finding(rule, message, line, text))
    return tuple(sorted(found.values(), key=lambda finding: finding.line))


def translation(text: str) -> str:
    """The C++ for OpenCL of a generated source, line by line: no template, no attributes."""
    source = Source.parse(text)
    values = [
        f"using {name} = {value};"
        if kind == "typename"
        else f"constexpr constant {kind} {name} = {value};"
        for kind, name, value in source.template
    ]
    parameters = ", ".join(declaration for declaration, _ in source.parameters)
    signature = f"{' '.join(values)} __kernel void {source.name}({parameters}) {{"
    code = source.prelude + signature + "\n" * source.signature_lines + source.body + "}\n"
    return CONSTRUCTED.sub(r"make<\1>(", code)


Found = Iterator[tuple[str, str, int]]


def _diagnostics(unit: cindex.TranslationUnit) -> Found:
    for diagnostic in unit.diagnostics:
        message = diagnostic.spelling
        if "casting to single precision" in message:
            continue  # a literal without suffix is a float in Metal
        if diagnostic.option == "-Wimplicit-float-conversion":
            if "__bf16" not in message.rpartition(" to ")[2]:
                continue
            yield "bfloat", "no number turns into a bfloat by itself", diagnostic.location.line
        elif "'double'" in message:
            yield "double", "Metal has no double", diagnostic.location.line
        elif diagnostic.severity >= cindex.Diagnostic.Warning:
            yield "type", message, diagnostic.location.line


def _rules(unit: cindex.TranslationUnit) -> Found:
    sizes = 0
    for cursor, parent in _walk(unit.cursor):
        line = cursor.location.line
        kind, spelling = cursor.kind, cursor.type.spelling
        if kind in DECLARATIONS | CASTS and "__generic" in spelling:
            yield "address space", f"'{cursor.spelling or spelling}' names none", line
        if (
            kind == cindex.CursorKind.UNEXPOSED_EXPR
            and parent.kind not in CASTS
            and _is_bfloat(cursor.type)
            and any(not _is_bfloat(child.type) for child in cursor.get_children())
        ):
            yield "bfloat", "no number turns into a bfloat by itself", line
        if kind == cindex.CursorKind.VAR_DECL and spelling.startswith("__local"):
            sizes += cursor.type.get_size()
            if sizes > THREADGROUP_MEMORY:
                message = f"{sizes} bytes with '{cursor.spelling}', of {THREADGROUP_MEMORY}"
                yield "threadgroup memory", message, line


def _walk(cursor: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, cindex.Cursor]]:
    """Every cursor of the kernel's own file, with its parent."""
    for child in cursor.get_children():
        file = child.location.file
        if file is None or file.name == FILE:
            yield child, cursor
            yield from _walk(child)


def _is_bfloat(kind: cindex.Type) -> bool:
    return kind.get_canonical().spelling.split(" ")[-1] == "__bf16"
