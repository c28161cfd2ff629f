"""What a compiler for Metal would refuse in a generated source, and some of what it would not."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from .source import Source

# `float2(` and `vec<half, 4>(`: OpenCL's vectors have no constructors, `make` stands in for them
CONSTRUCTOR = re.compile(
    r"\b((?:metal::)?(?:(?:float|half|bfloat|u?char|u?short|u?int|u?long)[234]|vec<[^<>;]*>))\s*\("
)


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
def _check(source: str) -> tuple[Finding, ...]:
    from . import rules  # needs libclang, whose absence is for `require` to tell

    lines = source.splitlines()
    found = []
    for rule, message, line in dict.fromkeys(rules.broken(translation(source))):
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        found.append(Finding(rule, message, line, text))
    return tuple(sorted(found, key=lambda finding: finding.line))


def check(source: str) -> list[Finding]:
    """What is wrong with a source that MLX generated; empty if nothing was found."""
    return list(_check(source))


def translation(text: str) -> str:
    """The C++ for OpenCL of a generated source, line by line, its template filled in."""
    source = Source.parse(text)
    constants = " ".join(
        f"using {name} = {value};"
        if kind == "typename"
        else f"constexpr constant {kind} {name} = {value};"
        for kind, name, value in source.template
    )
    parameters = ", ".join(declaration for declaration, _ in source.parameters)
    signature = f"{constants} __kernel void {source.name}({parameters}) {{"
    code = source.prelude + signature + "\n" * source.signature_lines + source.body + "}\n"
    return CONSTRUCTOR.sub(r"make<\1>(", code)
