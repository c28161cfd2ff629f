"""The direction of imports: mathematics below, the command line above, array libraries confined."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A part may import from the rows above its own, and from itself.
LEVELS = [
    {"cache", "compilers", "errors", "phases", "processes"},
    {"blas", "durable", "host_memory", "outcome", "paths"},
    {"config"},
    {"parameters", "decoder_state", "data", "sampling", "stop_texts"},
    {"arrays", "checkpoint", "distributed", "footprint", "ops"},
    {"layers"},
    {"models"},
    {"learner"},
    {"runtime", "torch"},
    {"backend"},
    {"language_model", "selftest"},
    {"text_state"},
    {"continuation"},
    {"generate", "evaluate"},
    {"server", "training"},
    {"analysis"},
    {"benchmarks"},
    {"cli"},
]
ONLY = {
    "data": {"cache", "errors", "config", "paths"},
    "durable": {"errors"},
    "checkpoint": {"errors", "config", "durable", "parameters", "paths"},
    "torch": {
        "compilers", "errors", "config", "parameters", "decoder_state", "host_memory", "outcome",
        "phases", "processes",
    },
}  # fmt: skip
CONFINED = {
    "mlx": {
        "arrays",
        "distributed",
        "ops",
        "layers",
        "models",
        "learner",
        "runtime",
        "benchmarks",
    },
    "torch": {"torch", "benchmarks"},
    "tyro": {"cli"},
    "matplotlib": {"analysis"},
}
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "mlx_pam" else ("mlx_pam", *parts)
    return ".".join(parts).removesuffix(".__init__")


FILES = {
    module_name(path): path
    for folder in ("mlx_pam", "benchmarks", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
every_module = pytest.mark.parametrize("module", FILES)


def part_of(module: str) -> str:
    """`mlx_pam.ops.retrieval` is of the part `ops`."""
    return module.split(".")[1] if "." in module else ""


def imports(module: str, *, top_level: bool = False) -> Iterator[str]:
    """Full names of the modules that a file imports; `from mlx_pam import ops` is `mlx_pam.ops`."""
    tree = ast.parse(FILES[module].read_text("utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & FILES.keys()
            yield from inside or {node.module}


@every_module
def test_imports_point_down(module: str) -> None:
    part = part_of(module)
    if part in ("", "__main__"):
        pytest.skip("the package's face")
    assert part in LEVEL, f"{part} needs a row in LEVELS"
    used = {part_of(name) for name in imports(module) if name.startswith("mlx_pam")} - {"", part}
    assert not {other for other in used if LEVEL.get(other, -1) >= LEVEL[part]}
    assert used <= ONLY.get(part, used)


@every_module
def test_array_libraries_are_confined(module: str) -> None:
    outside = {name.split(".")[0] for name in imports(module)}
    strays = {
        library for library in outside & CONFINED.keys() if part_of(module) not in CONFINED[library]
    }
    assert not strays


def test_there_are_no_circles() -> None:
    graph = {name: set(imports(name, top_level=True)) & FILES.keys() for name in FILES}
    graph["mlx_pam"] = set()
    assert list(graphlib.TopologicalSorter(graph).static_order())


@every_module
def test_one_file_is_one_idea(module: str) -> None:
    text = FILES[module].read_text("utf-8")
    assert text.count("\n") <= 500, "split it where an idea ends"
    assert ast.get_docstring(ast.parse(text)), "a file opens with a sentence that says what it is"
