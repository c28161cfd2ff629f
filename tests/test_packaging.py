"""What is installed is what is here: every package, every data file, and the command."""

from __future__ import annotations

from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import mlx_pam

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_package_is_installed(project: dict) -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "mlx_pam").rglob("__init__.py")}
    packages = {".".join(folder.parts) for folder in folders}
    packages |= {"mlx_pam.benchmarks", "mlx_pam.cli"}
    assert packages == set(project["tool"]["setuptools"]["packages"])


def test_every_data_file_is_installed(project: dict) -> None:
    data = project["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for package, patterns in data.items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    here = {
        path
        for path in (ROOT / "mlx_pam").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name != ".DS_Store"
    }
    assert here <= installed


def test_the_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="mlx_pam")
    assert script.value == "mlx_pam.cli:main"
    assert version("mlx_pam") == mlx_pam.__version__
