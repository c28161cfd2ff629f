"""H18: a damaged checkpoint is refused by the name of the file at fault, whole and unexecuted."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import run

from mlx_pam import checkpoint
from mlx_pam.cli import main
from mlx_pam.errors import CheckpointError


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("These are not weights, these are words. " * 100)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(path.with_name("executed"))))


def missing(path: Path) -> None:
    path.unlink()


DAMAGES = (cut, empty, text, pickled, missing)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> Path:
    return run(corpus, tmp_path_factory.mktemp("run"), steps=1).checkpoint


@pytest.fixture(params=["as saved", "exported"])
def folder(request, whole, tmp_path) -> Path:
    """A checkpoint to damage; an exported one has no completeness mark to tell that it was."""
    copied = shutil.copytree(whole, tmp_path / "model")
    if request.param == "exported":
        (copied / checkpoint.COMPLETE).unlink()
    return copied


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.CONFIG])
def test_the_file_at_fault_is_named(folder, name, damage: Callable[[Path], None]):
    damage(folder / name)
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(folder)
    assert str(folder / name) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (folder / "executed").exists()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_commands_say_it_in_one_line(corpus, folder, capsys, command, damage):
    damage(folder / checkpoint.WEIGHTS)
    more = {"generate": ["--prompt", "the"], "evaluate": ["--data", str(corpus)]}[command]
    assert main([command, "--checkpoint", str(folder), *more]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert checkpoint.WEIGHTS in printed.err


def test_resume_passes_over_a_cut_checkpoint_and_says_so_when_none_is_left(
    corpus, whole, tmp_path, capsys
):
    out = tmp_path / "run"
    shutil.copytree(whole, out / whole.name)
    cut(out / whole.name / checkpoint.OPTIMIZER)
    assert main(["train", "--data", str(corpus), "--out", str(out), "--resume"]) == 1
    assert "nothing to resume" in capsys.readouterr().err
