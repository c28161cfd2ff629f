"""A compiler that fails costs speed and a notice, never the run, on either backend."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_pam import compilers

MESSAGES = {
    "torch": "backend='inductor' raised:\nImportError: {}: file too short\n\nSet VERBOSE",
    "mlx": "Could not load C++ shared library {}: file too short",
    "half a header": "OSError: {}: invalid ELF header",
}


@pytest.fixture(autouse=True)
def unsaid() -> None:
    compilers.note.cache_clear()


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_library_that_is_cut_short_is_removed(message: str, tmp_path: Path) -> None:
    library = tmp_path / "some kernel.main.so"
    library.touch()
    assert compilers.removed_library(RuntimeError(message.format(library))) == library
    assert not library.exists()
    assert compilers.removed_library(RuntimeError(message.format(library))) is None


def test_a_library_that_may_not_be_loaded_is_left_alone(tmp_path: Path) -> None:
    library = tmp_path / "kernel.so"
    library.touch()
    text = f"{library}: failed to map segment from shared object: Operation not permitted"
    assert compilers.removed_library(ImportError(text)) is None
    assert library.exists()


def test_a_compilers_output_is_cut_to_the_line_that_says_why() -> None:
    output = "C++ compile error\n\nCommand:\ng++ -O3\n\nOutput:\nx.h:1: fatal error: Python.h: none"
    assert compilers.reason(output) == "x.h:1: fatal error: Python.h: none"


def test_a_notice_is_said_once(capsys: pytest.CaptureFixture) -> None:
    for _ in range(2):
        compilers.note("slow")
    assert capsys.readouterr().err == "note: slow\n"


class TestTorch:
    """`mlx_pam.torch.ops.fusing.compiled`, with PyTorch's compiler replaced."""

    @pytest.fixture
    def compiled(self, monkeypatch: pytest.MonkeyPatch):
        """(function, errors that the compiler raises before it works) -> the function, compiled."""
        torch = pytest.importorskip("torch")
        pytest.importorskip("torch._dynamo")
        from mlx_pam.torch.ops import fusing

        monkeypatch.setattr(fusing._Compiler, "works", True)
        monkeypatch.setattr(fusing, "_configure", lambda: None)

        def build(function, *errors: str):
            left = list(errors)

            def by_compiler(*arguments):
                if left:
                    inner = ImportError(left.pop(0))
                    raise torch._dynamo.exc.BackendCompilerFailed("inductor", inner, None)
                return "compiled", *arguments

            monkeypatch.setattr(torch, "compile", lambda function, dynamic: by_compiler)
            return fusing.compiled(function)

        return build

    @staticmethod
    def written(*arguments):
        return "as written", *arguments

    def test_what_was_cut_short_is_compiled_again(self, compiled, tmp_path, capsys) -> None:
        library = tmp_path / "kernel.main.so"
        library.touch()
        function = compiled(self.written, f"{library}: file too short")
        assert function(1) == ("compiled", 1)
        assert not library.exists()
        assert capsys.readouterr().err == f"note: {library} was cut short and is compiled again\n"

    def test_a_compiler_that_fails_is_named_once_and_asked_no_more(self, compiled, capsys) -> None:
        functions = [compiled(self.written, "g++: error: no such thing") for _ in range(2)]
        assert [function(2) for function in functions * 2] == [("as written", 2)] * 4
        told = "note: PyTorch runs uncompiled, which is slower: g++: error: no such thing\n"
        assert capsys.readouterr().err == told

    def test_an_error_of_the_function_itself_is_raised(self, monkeypatch, compiled) -> None:
        torch = pytest.importorskip("torch")
        from mlx_pam.torch.ops import fusing

        def fails(_):
            raise RuntimeError("shapes do not fit")

        compiled(self.written)
        monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
        with pytest.raises(RuntimeError, match="do not fit"):
            fusing.compiled(fails)(1)


def compiler(folder: Path, script: str) -> Path:
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class TestMLX:
    """`mlx_pam.ops.compiling.can_compile`, with a compiler of the test's."""

    @pytest.fixture
    def can_compile(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        mx = pytest.importorskip("mlx.core")
        from mlx_pam.ops import compiling

        if mx.default_device() == mx.gpu:
            pytest.skip("a GPU needs no C++ compiler")
        monkeypatch.delenv("MLX_DISABLE_COMPILE", raising=False)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return compiling.can_compile

    def test_a_compiler_that_fails_is_named_once(self, can_compile, tmp_path, capsys) -> None:
        path = compiler(tmp_path, "echo 'fatal error: cmath: No such file' >&2; exit 1")
        assert [can_compile(), can_compile()] == [False, False]
        assert capsys.readouterr().err == (
            f"note: MLX runs uncompiled, which is slower: {path} does not work: "
            "fatal error: cmath: No such file\n"
        )

    def test_a_library_that_cannot_be_loaded_is_no_library(
        self, can_compile, tmp_path, capsys
    ) -> None:
        compiler(tmp_path, 'for last; do :; done; : > "$last"')  # writes nothing, says nothing
        assert not can_compile()
        assert "cannot be used" in capsys.readouterr().err


TRAINING = """
import sys, numpy as np
from mlx_pam.backend import get_backend
from mlx_pam.config import PAMConfig, recipe_for
backend = get_backend(sys.argv[1])
config = PAMConfig(dim=16, num_layers=1, num_heads=2, head_dim=8, vocab_size=61)
learner = backend.Learner(
    backend.build(config, seed=3), recipe_for("tuned", "pam", "5m"), "float32"
)
loss = learner.gradient(np.arange(36, dtype=np.int32).reshape(4, 9), 32)
learner.update(1e-3)
print(loss)
"""


def trained(backend: str, tmp_path: Path, **more: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("COMPILE_DISABLE")}
    environment.pop("MLX_DISABLE_COMPILE", None)
    environment |= {"TMPDIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    return subprocess.run(
        [sys.executable, "-c", TRAINING, backend],
        env=environment | more,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_run_goes_on_without_a_compiler_that_fails(backend, tmp_path: Path) -> None:
    compiler(tmp_path, "echo 'fatal error: Python.h: No such file' >&2; exit 1")
    done = trained(backend.name, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "runs uncompiled, which is slower" in notes[0]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_compiles_again_what_a_kill_has_cut_short(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first = trained("torch", tmp_path)
    assert first.returncode == 0, first.stderr
    libraries = list(tmp_path.rglob("*.main.so"))
    for library in libraries:
        library.write_bytes(b"")
    assert libraries
    second = trained("torch", tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    assert "compiled again" in second.stderr
    assert "uncompiled" not in second.stderr
    assert all(library.stat().st_size for library in libraries)
