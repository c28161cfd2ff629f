"""Compile a generated source for the CPU, once: libraries are kept in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mlx_pam.cache import cache_folder

from .source import Source

MSL = Path(__file__).with_name("msl")
RUNTIME = ["machine.cpp", "memory.cpp", "undefined.cpp"]
COMMON = [
    "-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
    "-fno-strict-aliasing", "-ffp-contract=off", "-w",
]  # fmt: skip
UNDEFINED = (
    "shift,integer-divide-by-zero,signed-integer-overflow,bounds,alignment,return,unreachable,bool"
)
# How the kernel is compiled, how its machine, and how both are linked. By default the compiler's
# hooks are answered by our own machine, and nothing of the sanitizers' libraries is loaded.
FLAVOURS = {
    None: ([f"-fsanitize=thread,{UNDEFINED}"], [], []),
    "address,undefined": (
        ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
        ["-DEMULATOR_ADDRESS_SANITIZER"],
        ["-fsanitize=address,undefined"],
    ),
    "thread": (["-fsanitize=thread"], ["-DEMULATOR_THREAD_SANITIZER"], ["-fsanitize=thread"]),
}
THREADGROUP_ARRAY = re.compile(
    r"^([ \t]*)threadgroup\s+([\w:]+(?:<[^<>;]*>)?)\s+(\w+\s*(?:\[[^;]*?\])*(?:\s*,\s*\w+\s*(?:\[[^;]*?\])*)*)\s*;",
    re.MULTILINE,
)
DECLARATOR = re.compile(r"(\w+)\s*((?:\[[^\[\]]*\])*)")


class CompileError(Exception):
    """The C++ compiler did not accept a kernel that may still be right; the text is its own."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler on the path."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def absence() -> str | None:
    """Why kernels cannot be emulated here, or None."""
    if sys.platform != "linux":
        return "kernels are emulated on Linux alone; on a Mac they run on the GPU"
    if compiler() is None:
        return "no C++ compiler (c++, g++ or clang++): on Debian or Ubuntu, apt install g++"
    return None


def library(source: str, sanitize: str | None = None) -> Path:
    """A shared library with the kernel and its machine."""
    if reason := absence():
        raise RuntimeError(reason)
    for_kernel, for_machine, for_link = FLAVOURS[sanitize]
    parts = [_object(MSL / name, for_machine) for name in RUNTIME]
    if sanitize is not None:
        parts.pop()  # the sanitizer has its own answers
    command = [compiler(), *COMMON, *for_kernel, *for_machine, "-I", str(MSL)]
    code = translation(source)
    key = _key(code, *map(str, parts), *command, *for_link)
    kept = cache_folder() / "emulator" / f"kernel-{key}.so"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as workshop:
        file, built = Path(workshop) / "kernel.cpp", Path(workshop) / "kernel.o"
        file.write_text(code, "utf-8")
        _run([*command, "-c", str(file), "-o", str(built)])
        linked = Path(workshop) / "kernel.so"
        _run([compiler(), "-shared", *for_link, str(built), *map(str, parts), "-o", str(linked)])
        return _keep(linked, kept)


def translation(text: str) -> str:
    """The C++ of a generated source; lines are those of the source."""
    source = Source.parse(text)
    template = ", ".join(f"{kind} {name}" for kind, name, _ in source.template)
    parameters = ", ".join(declaration for declaration, _ in source.parameters)
    arguments = []
    buffers = iter(source.buffers)
    for _, attribute in source.parameters:
        if attribute.startswith("buffer"):
            kind, _ = next(buffers)
            kind = kind.strip()
            place = f"machine[{len(arguments)}]"
            reference = kind.endswith("&")
            arguments.append(f"*({kind[:-1]}*){place}" if reference else f"({kind}){place}")
        else:
            arguments.append(f"self.{attribute}")
    body = THREADGROUP_ARRAY.sub(_declare_arrays, source.body)
    first = source.prelude.count("\n") + source.signature_lines + 1
    return "\n".join(
        [
            '#include "metal.h"',
            '#line 1 "kernel.metal"',
            source.prelude,
            f"template <{template}>" if template else "",
            f"void {source.name}({parameters}) {{",
            f'#line {first} "kernel.metal"',
            body + "}",
            "EMULATOR_SILENT void emulator_kernel(void* const* machine) {",
            "  const emulator::Position self = emulator::here();",
            f"  {source.instance}({', '.join(arguments)});",
            "}",
            "",
        ]
    )


def _declare_arrays(match: re.Match[str]) -> str:
    indent, kind, declarators = match.groups()
    return indent + " ".join(
        f"typedef {kind} {name}_array{dimensions}; auto& {name} = *({name}_array*)"
        f'emulator::threadgroup_array(sizeof({name}_array), sizeof({kind}), "{name}", __LINE__);'
        for name, dimensions in DECLARATOR.findall(declarators)
    )


def _object(file: Path, flags: list[str]) -> Path:
    """Part of the machine, compiled once per compiler."""
    headers = "".join(header.read_text("utf-8") for header in sorted(MSL.glob("*.h")))
    command = [compiler(), *COMMON, "-O2", *flags, "-I", str(MSL)]
    key = _key(file.read_text("utf-8"), headers, _version(), *command)
    kept = cache_folder() / "emulator" / f"{file.stem}-{key}.o"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as workshop:
        built = Path(workshop) / kept.name
        _run([*command, "-c", str(file), "-o", str(built)])
        return _keep(built, kept)


@functools.cache
def _version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True).stdout


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _keep(built: Path, kept: Path) -> Path:
    kept.parent.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_suffix(f".{os.getpid()}")
    shutil.copyfile(built, unfinished)
    return unfinished.replace(kept)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr[:8000])
