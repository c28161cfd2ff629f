"""Logs of runs, whatever a crash, an editor or another program made of them, are still shown."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from fuzz import mutations
from fuzz.attack import Random, attack, command, inputs, write
from small_run import corpus as corpus
from small_run import run

from mlx_pam.analysis.curves import bin_curve, read_curves
from mlx_pam.training.metrics import LOG, Log


@pytest.fixture(scope="module")
def lines(corpus, tmp_path_factory) -> list[bytes]:
    """The log of a run with every kind of record."""
    out = tmp_path_factory.mktemp("logged")
    run(corpus, out, steps=4, eval_every=2, save_every=2, sample_every=2, sample_tokens=2)
    run(corpus, out, steps=6, resume=True)
    return (out / LOG).read_bytes().splitlines()


def damaged(random: Random, lines: list[bytes]) -> bytes:
    """Lines changed, doubled, moved or left out, and the file cut or not."""
    found = [random.choice(lines) for _ in range(random.choice((0, 1, 3)))]
    for line in lines:
        kind = random.randrange(8)
        if kind == 0:
            line = mutations.of_json(random, json.loads(line))
        elif kind == 1:
            line = mutations.of_bytes(random, line)
        if kind != 2:
            found.append(line)
    if random.random() < 0.2:
        random.shuffle(found)
    raw = b"\n".join(found) + random.choice((b"\n", b"", b"\r\n"))
    return mutations.of_bytes(random, raw) if random.random() < 0.2 else raw


def one_log(lines: list[bytes], folder: Path, random: Random) -> None:
    """List the run, read its curves, and resume its log."""
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / random.choice(("run", "[red]", "a b", "ü", os.fsdecode(b"\xff")))
    out.mkdir(parents=True)
    write(out / LOG, damaged(random, lines))
    if random.random() < 0.3:
        write(out / ".lock", mutations.of_json(random, {"process": os.getpid(), "host": "x"}))
    assert command("runs", str(folder), *random.choice(((), ("--json",)))) == 0
    curves = read_curves(out)
    for event in curves.tables:
        x = curves.along(event, random.choice(("step", "tokens", "elapsed")))
        for field in curves.tables[event]:
            if x is not None and len(x):
                bin_curve(x, curves.column(event, field), random.choice((1, 1000)))
    Log(out, resumed=random.choice((0, 3, 10**30))).close()


@inputs(250, 4_000)
def test_damaged_logs_are_listed(lines, tmp_path, count):
    attack("logs", count, partial(one_log, lines, tmp_path / "runs"))


def one_picture(lines: list[bytes], folder: Path, random: Random) -> None:
    write(folder / LOG, damaged(random, lines))
    more = ["--smooth"] if random.random() < 0.5 else []
    x = random.choice(("step", "tokens", "time"))
    command("plot", str(folder), "--out", str(folder / "plot.svg"), "--x", x, *more)


@inputs(4, 100)
def test_damaged_logs_are_drawn(lines, tmp_path, count):
    pytest.importorskip("matplotlib")
    attack("pictures", count, partial(one_picture, lines, tmp_path))
