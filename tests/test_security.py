"""No file, text or download is ever run as code, and what is fetched is pinned where it can be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_pam.data import gpt2, wikitext

ROOT = Path(__file__).parents[1]
FOLDERS = ("mlx_pam", "cli", "benchmarks")

MODULES = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve", "yaml"}
"""Whose reading can run what is read."""
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "np.load", "numpy.load",
    "mx.load", "np.memmap", "np.fromfile", "os.system", "os.popen", "subprocess.run",
    "subprocess.Popen", "subprocess.check_output", "ctypes.CDLL", "importlib.import_module",
    "runpy.run_path", "dist.broadcast_object_list",
}  # fmt: skip
OPTIONS = {"allow_pickle", "trust_remote_code", "shell", "weights_only"}

REASONS = {
    ("mlx_pam/data/store.py", "np.memmap"): "of whole numbers alone: see the test below",
    ("mlx_pam/blas.py", "ctypes.CDLL"): "a BLAS that the user or the system has installed",
    ("mlx_pam/blas.py", "subprocess.run"): "the C compiler, on a file of the package",
    ("mlx_pam/ops/compiling.py", "subprocess.run"): "the C++ compiler, on a line of the package",
    ("mlx_pam/ops/compiling.py", "ctypes.CDLL"): "what the compiler makes of that line",
    ("mlx_pam/__init__.py", "importlib.import_module"): "modules of a fixed list",
    ("cli/__init__.py", "importlib.import_module"): "modules of a fixed list",
    ("benchmarks/forms.py", "importlib.import_module"): "modules of a fixed list",
    ("benchmarks/libraries.py", "importlib.import_module"): "modules of a fixed list",
    ("benchmarks/workloads.py", "importlib.import_module"): "modules of a fixed list",
    (
        "mlx_pam/training/sweep/children.py",
        "subprocess.Popen",
    ): "this interpreter, on `mlx_pam train`",
    ("benchmarks/memory.py", "ctypes.CDLL"): "the C library of the system",
    ("benchmarks/rounds.py", "subprocess.Popen"): "this interpreter, on a module of the package",
    ("benchmarks/footprint.py", "subprocess.check_output"): "this interpreter, on this module",
    ("benchmarks/flat.py", "subprocess.run"): "this interpreter, on a module of the package",
    ("benchmarks/machine.py", "subprocess.run"): "git, sysctl: fixed words",
    ("benchmarks/chips.py", "subprocess.run"): "sysctl, nvidia-smi: fixed words",
    (
        "benchmarks/triton_kernels.py",
        "subprocess.run",
    ): "cuobjdump, on a kernel that was just built",
}
"""(file, what stands there) -> why it is no way for a stranger's file to be run."""


def dangers(tree: ast.AST) -> Iterator[str]:
    """What in a module can run code that comes from elsewhere, by the names above."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from MODULES & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from MODULES & {(node.module or "").split(".")[0]}
            imported = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (CALLS | {f"builtins.{name}" for name in BUILTINS}) & imported
        elif isinstance(node, ast.Call):
            yield from (CALLS | BUILTINS) & {ast.unparse(node.func)}
            yield from OPTIONS & {keyword.arg for keyword in node.keywords}


def found() -> set[tuple[str, str]]:
    modules = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8"))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(modules) > 100
    return {(name, danger) for name, tree in modules.items() for danger in dangers(tree)}


def test_nothing_that_is_read_is_run():
    assert found() - set(REASONS) == set()


def test_no_reason_outlives_its_cause():
    assert set(REASONS) - found() == set()


@pytest.mark.parametrize(
    ("code", "danger"),
    [
        ("import pickle as p", "pickle"),
        ("from yaml import load", "yaml"),
        ("from torch import load", "torch.load"),
        ("np.load(path)", "np.load"),
        ("f(path, allow_pickle=True)", "allow_pickle"),
        ("torch.load(path)", "torch.load"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("load_dataset(name, trust_remote_code=True)", "trust_remote_code"),
    ],
)
def test_each_danger_would_be_seen(code: str, danger: str):
    assert danger in set(dangers(ast.parse(code)))
    assert set(dangers(ast.parse("mx.eval(x); re.compile(y); model.load(z)"))) == set()


def test_bytes_on_the_disk_are_never_taken_for_objects(tmp_path, monkeypatch):
    import json

    from mlx_pam.data.corpus import load_corpus

    text = tmp_path / "corpus.txt"
    text.write_text("river stone cloud " * 200)
    load_corpus(str(text), gpt2.gpt2(), tmp_path / "cache", progress=False)
    (path,) = (tmp_path / "cache").glob("tokens/*/corpus.json")
    record = json.loads(path.read_bytes())
    for dtype, size in (("O", 8), ("float16", 2), ("U1", 4)):
        counts = {}
        for split in record["tokens"]:
            (path.parent / f"{split}.bin").write_bytes(b"\x01" * 16)
            counts[split] = 16 // size
        path.write_text(json.dumps(record | {"dtype": dtype, "tokens": counts}))
        corpus = load_corpus(str(text), gpt2.gpt2(), tmp_path / "cache", progress=False)
        assert corpus.train.dtype == "uint16"
        assert gpt2.gpt2().decode(corpus.train).startswith("river stone")


def test_what_is_fetched_by_a_name_of_ours_is_one_commit():
    assert re.fullmatch("[0-9a-f]{40}", wikitext.REVISION)
    assert re.fullmatch("[0-9a-f]{64}", gpt2.RANKS_SHA256)


def test_the_paths_and_words_of_the_page_are_those_of_the_package():
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    source = "".join(path.read_text("utf-8") for path in (ROOT / "mlx_pam").rglob("*.py"))
    for word in ("MLX_PAM_CACHE", "MLX_PAM_BLAS", "log.jsonl", "complete.json"):
        assert word in page
        assert word in source
    assert "fuzz:" in (ROOT / "Makefile").read_text("utf-8")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    least = re.search(r'"datasets>=(\d+)\.(\d+)', project)
    assert (int(least[1]), int(least[2])) >= (2, 20)  # before, the code of data sets was run
