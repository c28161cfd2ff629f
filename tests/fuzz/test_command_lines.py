"""Command lines of true options and odd values end in an answer or an error in words."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path

import pytest
from fuzz.attack import Random, attack, command, inputs, refused
from small_run import corpus as corpus
from small_run import run

from mlx_pam.benchmarks.metal import BenchConfig
from mlx_pam.cli import COMMANDS
from mlx_pam.cli.arguments import flag, parse
from mlx_pam.cli.data import DataConfig
from mlx_pam.cli.generate import GenerateArguments
from mlx_pam.cli.plot import PlotConfig
from mlx_pam.cli.runs import RunsConfig
from mlx_pam.config import PAMConfig, TrainConfig
from mlx_pam.data.hub import HubText, Unreachable
from mlx_pam.evaluate import EvaluateConfig
from mlx_pam.selftest import SelftestConfig

SPEAKING = PAMConfig(dim=2, num_layers=1, num_heads=1, head_dim=2)
SETTINGS = {
    "train": TrainConfig, "generate": GenerateArguments, "evaluate": EvaluateConfig,
    "runs": RunsConfig, "plot": PlotConfig, "data": DataConfig,
}  # fmt: skip
READ_ONLY = {"bench": BenchConfig, "selftest": SelftestConfig}  # their work takes minutes

NUMBERS = ("0", "1", "2", "3", "-1", "-0", "007", "1_0", "1e3", "0.5", "-0.1", "1e-320", "1e308")
NUMBERS += ("1e400", "nan", "inf", "-inf", "none", "None", "٣", "", " 1 ", "0x10", "1" + "0" * 30)
WORDS = (
    "a",
    "",
    " ",
    "-",
    "--",
    "-1",
    "x=y",
    "=",
    "*",
    "a*2",
    "a*0",
    "a*1,b*2",
    "hf:a/b",
    "hf:a/b@c:d",
)
WORDS += ("hf:/", "wikitext-103", "wikitext-2", "🙂", "é" * 300, "a" * 5000, "{0}", "%s")
WORDS += ("[red]", "\n", "~", "~nobody/x", "\udcff", "pam", "mlx", "torch", "float32", "all", "5m")
PATHS = ("corpus.txt", "run", "run/best", "run/step-00000002", "run/log.jsonl", "empty", "none/x")
PATHS += (
    "plot.png",
    "plot.svg",
    "plot.xyz",
    "state",
    "corpus.txt/x",
    "/dev/null",
    "/dev/zero",
    ".",
)
HUGE = ("1" + "0" * 400, "9" * 5000)


@pytest.fixture
def place(corpus, tmp_path, monkeypatch) -> Path:
    """A folder of its own, home and cache too, with a run and a text; the hub does not answer."""

    def silent(*_: object) -> str:
        raise Unreachable("no network here")

    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "MLX_PAM_CACHE", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setattr(HubText, "ask_hub", silent)
    monkeypatch.setattr("mlx_pam.data.hub._downloaded", lambda *_: None)
    (tmp_path / "corpus.txt").write_text(corpus.read_text()[:1500])
    (tmp_path / "empty").mkdir()
    run(tmp_path / "corpus.txt", tmp_path / "run", SPEAKING, steps=2, save_every=1, eval_every=2)
    return tmp_path


def value(random: Random, field: dataclasses.Field) -> str:
    """Mostly what a field may be given; an odd word otherwise."""
    kind = str(field.type)
    if random.random() < 0.2:
        return random.choice(NUMBERS + WORDS + PATHS)
    if "int" in kind or "float" in kind:
        return random.choice(NUMBERS + HUGE) if random.random() < 0.9 else random.choice(WORDS)
    if "Path" in kind or field.name == "data":
        return random.choice(PATHS)
    return random.choice(WORDS)


def options(random: Random, settings: type, most: int = 4) -> list[str]:
    """Some options with values, now and then misspelt, doubled, or without one."""
    words = []
    fields = dataclasses.fields(settings)
    for field in random.choices(fields, k=random.randint(0, most)):
        option = flag(field.name)
        kind = random.randrange(20)
        if kind == 0:
            option = option[:-1]
        elif kind == 1:
            option = option.replace("-", "_")
        if field.type in (bool, "bool") or kind == 2:
            words.append(option)
        elif kind < 7:
            words.append(f"{option}={value(random, field)}")
        else:
            words += [option, value(random, field)]
    return words


def one_line(random: Random) -> None:
    """A command with odd options; what it would work on is small."""
    name = random.choice(("train", "train", "generate", "generate", "evaluate", "runs", "data"))
    words = [name, *options(random, SETTINGS[name])]
    if name == "train":
        words += ["--dry-run"] if random.random() < 0.95 else ["--help"]
    if name == "generate":  # as many tokens as are asked for would be drawn
        words += ["--max-tokens", random.choice(("0", "1", "2"))]
    if name in ("generate", "evaluate") and random.random() < 0.8:
        words[1:1] = ["--checkpoint", "run"]
    if name == "evaluate":
        words += ["--data", "corpus.txt"]
    if random.random() < 0.1:
        words.insert(random.randrange(len(words) + 1), random.choice(WORDS + PATHS))
    if name == "data" and "--remove" in " ".join(words):
        words = [word.replace("--remove", "--json") for word in words]
    command(*words, stdin=os.fsencode(random.choice(WORDS)))


@inputs(150, 3_000)
def test_odd_command_lines(place, count):
    attack("lines", count, one_line)


def one_word(random: Random) -> None:
    """Words where a command should stand, and after commands that take none."""
    known = [*COMMANDS, "--help", "-h", "--version"]
    words = random.choices([*WORDS, *PATHS, *NUMBERS], k=random.randint(0, 3))
    if random.random() < 0.3:
        word = random.choice(known)
        words.insert(0, word[: random.randrange(len(word))])
    elif random.random() < 0.5:
        words.insert(0, random.choice(("runs", "--help", "--version", "-h")))
    if not words or words[0] not in ("bench", "selftest", "train", "plot"):
        command(*words)


@inputs(150, 8_000)
def test_odd_words(place, count):
    attack("words", count, one_word)


def one_reading(random: Random) -> None:
    """The options of commands that work for minutes are only read."""
    settings = random.choice([*SETTINGS.values(), *READ_ONLY.values()])
    words = options(random, settings, 6)
    refused(partial(parse, settings, words, prog="mlx_pam", description="x"))


@inputs(300, 25_000)
def test_odd_options_are_read(place, count):
    attack("options", count, one_reading)
