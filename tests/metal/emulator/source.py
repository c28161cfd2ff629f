"""The Metal source that MLX generates for a kernel, and its parts.

MLX writes the signature, the template instantiation and the address spaces itself, from the arrays
of a launch. On Linux it cannot compile them, but while a function is exported it prints them.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

STANDARD_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>", re.MULTILINE)
PRINTED = re.compile(r"```\n(.*?)\n```", re.DOTALL)


def generate(kernel: Callable[..., Any], *, inputs: Sequence[Any], **launch: Any) -> str:
    """The source of `kernel(inputs=..., **launch)`, a launch that is not carried out.

    kernel: what `mx.fast.metal_kernel` returned. MLX raises its own errors of misuse.
    """
    arrays = [x for x in inputs if isinstance(x, mx.array)]

    def call(*traced: mx.array) -> Any:
        remaining = iter(traced)
        given = [next(remaining) if isinstance(x, mx.array) else x for x in inputs]
        return kernel(inputs=given, **{**launch, "verbose": True})

    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        terminal = os.dup(1)
        os.dup2(file.fileno(), 1)  # MLX prints past Python
        try:
            mx.export_function(os.devnull, call, *arrays)
        finally:
            os.dup2(terminal, 1)
            os.close(terminal)
        file.seek(0)
        found = PRINTED.search(file.read().decode())
    if found is None:
        raise RuntimeError("MLX printed no source: its metal_kernel(verbose=True) has changed")
    return found.group(1)


@dataclass(frozen=True)
class Source:
    """A generated source taken apart; `prelude` + `body` keep their lines.

    prelude: the kernel's header, up to its template or signature, without the language's own
    template: (kind, name, value) of each template parameter: ("typename", "T", "half")
    parameters: (declaration, attribute): ("const device half* x", "buffer(0)")
    signature_lines: lines between prelude and body
    """

    name: str
    prelude: str
    template: tuple[tuple[str, str, str], ...]
    parameters: tuple[tuple[str, str], ...]
    body: str
    signature_lines: int

    @property
    def instance(self) -> str:
        """The function with its template arguments: `name<half, 64>`."""
        values = ", ".join(value for _, _, value in self.template)
        return f"{self.name}<{values}>" if self.template else self.name

    @property
    def buffers(self) -> list[tuple[str, str]]:
        """(type, name) of each parameter that is memory: ("const device half*", "x")."""
        declarations = [d for d, attribute in self.parameters if attribute.startswith("buffer")]
        return [_type_and_name(d) for d in declarations]

    @classmethod
    def parse(cls, text: str) -> Source:
        values: list[str] = []
        instance = re.search(r'\ntemplate \[\[host_name\("\w+"\)\]\].*\Z', text, re.DOTALL)
        if instance:
            text = text[: instance.start()]
            arguments = re.search(r"decltype\(\w+<(.*?)>\)", instance.group(0))
            values = [value.strip() for value in arguments.group(1).split(",")]
        kernel = list(re.finditer(r"^\[\[kernel\]\] void (\w+)\(\n", text, re.MULTILINE))[-1]
        prelude, declared = text[: kernel.start()], []
        if values:
            prelude, _, template = prelude.rpartition("template <")
            declared = [tuple(part.split()) for part in template.strip().rstrip(">").split(",")]
        end = text.index(") {\n", kernel.end()) + len(") {\n")
        signature = text[kernel.end() : end - len(") {\n")]
        body = text[end:].rstrip()
        if not body.endswith("}"):
            raise ValueError("the generated source does not end with the kernel")
        return cls(
            name=kernel.group(1),
            prelude=STANDARD_HEADER.sub("", prelude),
            template=tuple(
                (kind, name, value) for (kind, name), value in zip(declared, values, strict=True)
            ),
            parameters=tuple(
                re.fullmatch(r"\s*(.*?)\s*\[\[(.*)\]\]\s*", line).groups()
                for line in signature.split(",\n")
            ),
            body=body[:-1],
            signature_lines=text[:end].count("\n") - prelude.count("\n"),
        )


def _type_and_name(declaration: str) -> tuple[str, str]:
    return re.fullmatch(r"(.*[\s*&])(\w+)", declaration).groups()
