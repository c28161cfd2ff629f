"""The command frame: codes, hints, options from dataclasses, nothing heavy before its time."""

from __future__ import annotations

import signal
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import Literal

import pytest
from new_process import python
from tyro.conf import Positional

from mlx_pam import checkpoint, cli
from mlx_pam.cli.arguments import parse
from mlx_pam.config import TrainConfig, require_choice, require_count, require_range
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.tokenizer import get_tokenizer
from mlx_pam.errors import ConfigError, DataError

HEAVY = {"mlx", "torch", "datasets", "transformers", "huggingface_hub", "pandas", "pyarrow"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a command."""

    prompt: str
    """The text to go on from."""
    scale: Literal["5m", "100m"] = "5m"
    """Size of the model."""
    batch_size: int = 8
    """Windows in a batch."""
    lr: float | None = None
    """Peak learning rate."""
    dropout: float = 0.0
    """A number that the dataclass does not check."""
    resume: bool = False
    """Go on with a run."""
    stop: tuple[str, ...] = ()
    """Texts that end it."""

    def __post_init__(self) -> None:
        require_choice("scale", self.scale, ("5m", "100m"))
        require_count("batch_size", self.batch_size)
        if self.lr is not None:
            require_range("lr", self.lr, 0, open_least=True)


def settings(*words: str) -> Settings:
    return parse(Settings, ["--prompt", "Once", *words], "mlx_pam tell", "Tell a story.")


def test_words_become_the_fields() -> None:
    words = ["--scale", "100m", "--batch_size=2", "--lr", "1e-3", "--resume", "--stop", "a"]
    assert settings(*words, "--stop", "b") == Settings(
        prompt="Once", scale="100m", batch_size=2, lr=1e-3, resume=True, stop=("a", "b")
    )
    assert settings() == Settings(prompt="Once")
    assert settings("--lr", "none").lr is None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings of a command that takes words without options."""

    books: Positional[tuple[str, ...]] = ()
    """What to read from."""
    page: int = 1
    """Where to begin."""


def test_words_without_options_may_stand_anywhere() -> None:
    def choice(*words: str) -> Choice:
        return parse(Choice, words, "mlx_pam read", "Read books.")

    assert choice("a", "--page", "2", "b") == Choice(books=("a", "b"), page=2)
    assert choice("--page=2", "a b") == Choice(books=("a b",), page=2)
    assert choice() == Choice()
    with pytest.raises(ConfigError, match=r"option '--books'.*\nusage: mlx_pam read BOOKS \[OPT"):
        choice("--books", "a")
    with pytest.raises(ConfigError, match="unexpected word '-a'"):
        choice("-a")


@pytest.mark.parametrize("text", ["-", "--", "--- a title", "-3", "--resumes", "a=b", "", "\n"])
def test_a_text_may_look_like_an_option(text: str) -> None:
    assert settings("--stop", text).stop == (text,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scael", "5m"], "there is no option '--scael'; did you mean --scale?"),
        (["--zzz"], "there is no option '--zzz'"),
        (["--scale", "7q"], "--scale must be one of 5m, 100m, got '7q'"),
        (["--batch-size", "-1"], "--batch-size must be a whole number >= 1, got -1"),
        (["--batch_size", "hot"], "--batch-size must be a whole number >= 1, got 'hot'"),
        (["--batch-size", "1.5"], "--batch-size must be a whole number >= 1, got '1.5'"),
        (["--lr", "nan"], "--lr must be a number > 0, got nan"),
        (["--dropout", "hot"], "--dropout must be a number, got 'hot'"),
        (["--lr"], "--lr needs a value"),
        (["--lr", "--resume"], "--lr needs a value"),
        (["--resume", "yes"], "unexpected word 'yes'"),
        (["-x"], "unexpected word '-x'"),
    ],
)
def test_an_error_says_option_rule_and_value(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(*words)
    first, second = str(caught.value).split("\n")
    assert first == message
    assert second == "usage: mlx_pam tell [OPTIONS]; `mlx_pam tell --help` lists them"


def test_a_path_begins_at_home_and_is_never_empty(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    read = parse(TrainConfig, ["--out=~/runs/x"], prog="x", description="")
    assert read.out == tmp_path / "runs" / "x"
    assert TrainConfig(out="~/runs/x").run_folder == tmp_path / "runs" / "x"
    for path in ("", "~nobody-of-this-name/x"):
        with pytest.raises(
            ConfigError, match=f"--out must be a path, not an empty .*, got '{path}'"
        ):
            parse(TrainConfig, ["--out", path], prog="x", description="")
    with pytest.raises(ConfigError, match="out must be a folder, or None for the default, got ''"):
        TrainConfig(out="")


def test_a_path_below_the_home_of_nobody_is_an_error_of_its_own() -> None:
    path, said = "~nobody-of-this-name/x", "must be a user of this machine, got '~nobody-of"
    for use in (
        lambda: TrainConfig(out=path),
        lambda: TrainConfig(tokenizer=path).vocabulary(),
        lambda: checkpoint.load(path),
        lambda: load_corpus(path, get_tokenizer("bytes")),
    ):
        with pytest.raises(ConfigError, match=said):
            use()


def test_an_option_whose_values_look_like_a_combination_is_given_once(capsys) -> None:
    assert settings("--batch-size", "2", "--batch-size", "4").batch_size == 4
    assert cli.main(["train", "--variant", "recall", "--variant=no-gate", "--dry-run"]) == 2
    assert "error: --variant can be given once: variants are not" in capsys.readouterr().err


def test_a_needed_option_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="--prompt is needed"):
        parse(Settings, [], "mlx_pam tell", "Tell a story.")


@pytest.mark.parametrize("columns", [80, 120])
def test_help_shows_every_option_within_the_screen(columns, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stop:
        parse(Settings, ["--help"], "mlx_pam tell", "Tell a story.")
    page = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(len(line) <= columns for line in page.splitlines())
    words = ["Tell a story.", "--batch-size", "Windows in a batch.", "{5m,100m}", "default: 8"]
    assert [word for word in words if word not in page] == []
    assert "--no-resume" not in page


def command(monkeypatch: pytest.MonkeyPatch, run) -> None:
    """Let `mlx_pam tell` call this function."""
    module = types.ModuleType("told")
    module.run = run
    monkeypatch.setitem(sys.modules, "told", module)
    monkeypatch.setitem(cli.COMMANDS, "tell", ("told", "tell a story"))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("steps must be a whole number >= 1, got 0"), 2, "error: steps must be"),
        (DataError("there is no file x.txt"), 1, "error: there is no file x.txt"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_a_code_and_a_line(error, code, message, monkeypatch, capsys) -> None:
    def fail(_: list[str]) -> int:
        raise error

    command(monkeypatch, fail)
    assert cli.main(["tell"]) == code
    assert capsys.readouterr().err.startswith(message)


def test_a_command_gets_the_rest_of_the_line_and_gives_the_code(monkeypatch) -> None:
    seen = []
    command(monkeypatch, lambda words: seen.extend(words) or 3)
    assert cli.main(["tell", "--a", "b"]) == 3
    assert seen == ["--a", "b"]


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch) -> None:
    command(monkeypatch, lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["tell"])


def test_a_closed_pipe_ends_quietly() -> None:
    code = "import sys; from mlx_pam.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen(
        [sys.executable, "-c", f"input(); {code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, err = process.stdin.write(b"\n"), process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == cli.EXIT_BROKEN_PIPE, err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    code = f"""
import sys
from mlx_pam.cli import main
code = main([{name!r}, "--help"])
print(*{HEAVY!r} & sys.modules.keys(), file=sys.stderr)
sys.exit(code)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert f"usage: mlx_pam {name}" in done.stdout
    assert done.stderr.split() == []


def test_public_names_are_what_they_say() -> None:
    import mlx_pam
    from mlx_pam.generate import generate  # importing the module must not hide the function

    assert mlx_pam.generate is generate
    assert all(callable(getattr(mlx_pam, name)) for name in ("generate", "load", "stream", "train"))
    assert {"generate", "load", "stream", "train"} <= set(dir(mlx_pam))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        mlx_pam.lode  # noqa: B018


def test_control_c_is_as_usual_behind_the_command():
    """While Python ends it would be a traceback out of what happens to be cleared away."""
    code = (
        "import os, signal, sys; from mlx_pam.cli import main; "
        "sys.argv = ['mlx_pam', '--version']; main(); os.kill(os.getpid(), signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
