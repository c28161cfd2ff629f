"""H19: command line manners on a machine with neither Metal nor CUDA, tried from outside."""

from __future__ import annotations

import pytest
from new_process import mlx_pam, python

from mlx_pam.cli import COMMANDS

PROMISED = (
    "--model --scale --data --steps --seq-len --batch-size --accumulate --lr --recipe --seed "
    "--backend --out --resume --eval-every --save-every --sample-every --stop-after --dry-run"
)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(words: list[str]) -> None:
    done = mlx_pam(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert [name for name in COMMANDS if name not in done.stdout] == []


def test_version_is_one_line() -> None:
    done = mlx_pam("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mlx_pam 0.")
    assert done.stdout.count("\n") == 1


def test_help_of_train_has_the_promised_options() -> None:
    done = mlx_pam("train", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert [option for option in PROMISED.split() if option not in done.stdout] == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "did you mean train?"),
        (["--verison"], "did you mean --version?"),
        (["train", "--scael", "100m"], "did you mean --scale?"),
        (
            ["train", "--scale", "7q"],
            "--scale must be one of 300k, 1m, 3m, 5m, 10m, 25m, 50m, 100m, got '7q'",
        ),
        (["train", "--batch-size", "-1"], "--batch-size must be a whole number >= 1, got -1"),
    ],
)
def test_wrong_words_get_a_hint_and_the_usage(words: list[str], hint: str) -> None:
    done = mlx_pam(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert hint in first
    assert second.startswith("usage: mlx_pam ")


def test_the_package_imports_and_tells_its_backend() -> None:
    code = "import mlx_pam.backend as b; print(b.get_backend('auto').description)"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
