"""Compile a generated source for the CPU, once: libraries are kept in the user's cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mlx_pam.cache import cache_folder

from .source import Source

MSL = Path(__file__).with_name("msl")
COMMON = [
    "-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
    "-fno-strict-aliasing", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w",
]  # fmt: skip
UNDEFINED = "shift,integer-divide-by-zero,signed-integer-overflow,bounds,return,unreachable,bool"
OPTIONS = [
    ("-ftrivial-auto-var-init=pattern",),  # what a thread forgets to set is far from 0
    ("-mllvm", "-tsan-instrument-read-before-write"),  # clang: x += 1 reads x as well
]
MACHINE = ["machine.cpp", "schedule.cpp", "memory.cpp"]
SANITIZERS = ("address,undefined", "thread")
FORGOTTEN = 30 * 24 * 3600  # seconds until what nobody used is removed

# `threadgroup float a[4], b[N];` and any other use of the word, which must be of a pointer
NAMED = r"\w+\s*(?:\[[^;\]]*\]\s*)*"
THREADGROUP_ARRAYS = re.compile(
    rf"\bthreadgroup\s+([\w:]+(?:<[^<>;]*>)?)\s+({NAMED}(?:,\s*{NAMED})*);"
)
DECLARATOR = re.compile(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)(?:,|$)")
NO_POINTER = re.compile(
    r"^.*\bthreadgroup\b(?!\s+(?:const\s+)?[\w:]+\s*(?:<[^;]*?>)?\s*[*&]).*$", re.M
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
POINTER_TO_REGISTERS = re.compile(r"\bthread\s+[^;,()]*\*")
POINTER_TO_VECTOR = re.compile(r"(?:[a-z][234]|vec<[^<>;]*>)\s*\*")


class CompileError(Exception):
    """The C++ compiler refused a kernel; the text is its own."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler on the path."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def library(text: str, sanitize: str | None = None) -> Path:
    """A shared library with the kernel of a generated source and the machine that runs it.

    By default the hooks that the compiler sets for its sanitizers are answered by our `hooks.cpp`;
    with `sanitize` the library needs that sanitizer's own, in the process from its beginning.
    """
    code = translation(text)
    watched, machine, linked = _flags(code, sanitize)
    names = MACHINE if sanitize else [*MACHINE, "hooks.cpp"]
    parts = [str(_object(MSL / name, machine)) for name in names]
    compile_it = [compiler(), *COMMON, *watched, *machine, "-I", str(MSL), "-c"]
    link_it = [compiler(), "-shared", *linked]

    def make(workshop: Path, target: Path) -> None:
        (workshop / "kernel.cpp").write_text(code, "utf-8")
        _run([*compile_it, str(workshop / "kernel.cpp"), "-o", str(workshop / "kernel.o")])
        _run([*link_it, str(workshop / "kernel.o"), *parts, "-o", str(target)])

    return _kept("kernel", ".so", [code, *parts, *compile_it, *link_it], make)


def _flags(code: str, sanitize: str | None) -> tuple[list[str], list[str], list[str]]:
    """Compiler flags for the kernel alone, for both kernel and machine, and for the linker."""
    if sanitize is None:
        # much of the time would go into what few kernels can get wrong
        alignment = ",alignment" if POINTER_TO_VECTOR.search(code) else ""
        size = ",object-size" if POINTER_TO_REGISTERS.search(code) else ""
        more = [flag for option in OPTIONS if _accepts(option) for flag in option]
        return [f"-fsanitize=thread,{UNDEFINED}{alignment}{size}", *more], [], []
    name, _, undefined = sanitize.partition(",")
    flag = f"-fsanitize={sanitize}"
    recover = ["-fsanitize-recover=all"] if undefined else []
    return [flag, *recover], [f"-DEMULATOR_{name.upper()}_SANITIZER"], [flag]


def _object(file: Path, flags: list[str]) -> Path:
    """A part of the machine, compiled once."""
    command = [compiler(), *COMMON, "-O2", *flags, "-I", str(MSL), "-c", str(file), "-o"]
    return _kept(
        file.stem, ".o", [*_texts(), _version(), *command],
        lambda _, target: _run([*command, str(target)]),
    )  # fmt: skip


def translation(text: str) -> str:
    """The C++ of a generated source; the compiler's line numbers are the source's."""
    source = Source.parse(text)
    template = ", ".join(f"{kind} {name}" for kind, name, _ in source.template)
    parameters = ", ".join(declaration for declaration, _ in source.parameters)
    arguments = []
    for place, (declaration, attribute) in enumerate(source.parameters):
        kind = declaration.rpartition(" ")[0]
        if not attribute.startswith("buffer"):
            arguments.append(f"self.{attribute}")
        elif kind.endswith("&"):
            arguments.append(f"*({kind[:-1]}*)buffers[{place}]")
        else:
            arguments.append(f"({kind})buffers[{place}]")
    first = source.prelude.count("\n") + source.signature_lines + 1
    return "\n".join(
        [
            '#include "metal.h"',
            '#line 1 "kernel.metal"',
            source.prelude,
            f"template <{template}>" if template else "",
            f"void {source.name}({parameters}) {{",
            f'#line {first} "kernel.metal"',
            _declare_arrays(source.body) + "}",
            "EMULATOR_SILENT void emulator_kernel(void* const* buffers) {",
            "  const emulator::Position self = emulator::here();",
            f"  {source.instance}({', '.join(arguments)});",
            "}",
            "",
        ]
    )


def _declare_arrays(body: str) -> str:
    """Threadgroup variables as references to what the machine gives the whole threadgroup."""

    def declare(match: re.Match[str]) -> str:
        kind, declarators = match.groups()
        return " ".join(
            f"typedef {kind} emulator_{name}{size}; auto& {name} = *(emulator_{name}*)emulator::"
            f"threadgroup_array(sizeof(emulator_{name}), sizeof({kind}), Part<{kind}>::bytes, "
            f'"{name}", __LINE__);'
            for name, size in DECLARATOR.findall(declarators)
        )

    body = THREADGROUP_ARRAYS.sub(declare, body)
    if left := NO_POINTER.search(COMMENT.sub("", body)):
        line = left.group(0).strip()
        raise CompileError(f"the emulator does not understand this threadgroup variable: {line}")
    return body


@functools.cache
def _accepts(option: tuple[str, ...]) -> bool:
    """Whether the compiler knows an option; every one has some that another has not."""
    command = [compiler(), *option, "-x", "c++", "-c", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


@functools.cache
def _texts() -> list[str]:
    return [file.read_text("utf-8") for file in sorted(MSL.iterdir())]


@functools.cache
def _version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True).stdout


def _kept(name: str, suffix: str, made_of: list[str], make: Callable[[Path, Path], None]) -> Path:
    """The file made of these texts: from the cache, or made in a workshop and kept."""
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:20]
    kept = cache_folder() / "emulator" / f"{name}-{key}{suffix}"
    if kept.exists():
        os.utime(kept)
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    _forget(kept.parent)
    with tempfile.TemporaryDirectory() as folder:
        workshop = Path(folder)
        make(workshop, workshop / kept.name)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(workshop / kept.name, unfinished)
        return unfinished.replace(kept)


def _forget(folder: Path) -> None:
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may have been faster
            if file.stat().st_mtime < time.time() - FORGOTTEN:
                file.unlink()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr[:8000])
