"""H11: the count that is printed is what is stored, and only matrices and the table decay."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from small_run import TINY, TINY_TRANSFORMER, eager, run

from mlx_pam import checkpoint
from mlx_pam.cli import main
from mlx_pam.config import PRESETS, recipe_for
from mlx_pam.parameters import initial_weights, parameter_table

PRINTED = re.compile(r"([\d,]+) parameters")
LARGEST = {family: presets["100m"] for family, presets in PRESETS.items()}

either = pytest.mark.parametrize("config", [TINY, TINY_TRANSFORMER], ids=["pam", "transformer"])


def printed_count(text: str) -> int:
    return int(PRINTED.search(text)[1].replace(",", ""))


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ([], LARGEST["pam"]),
        (["--protect", "channel"], dataclasses.replace(LARGEST["pam"], protect="channel")),
        (["--model", "sam"], LARGEST["sam"]),
        (["--model", "transformer"], LARGEST["transformer"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_dry_run_at_100m_prints_the_count_and_trains_nothing(
    corpus, tmp_path, capsys, options, config
):
    out = tmp_path / "out"
    code = main(
        ["train", "--scale", "100m", *options, "--data", str(corpus), "--out", str(out),
         "--seq-len", "16", "--dry-run"]
    )  # fmt: skip
    printed = printed_count(capsys.readouterr().out)
    assert code == 0
    assert printed == sum(p.size for p in parameter_table(config).values())
    assert abs(printed / 100e6 - 1) < 0.03
    assert not out.exists()


def test_the_printed_count_is_that_of_the_stored_tensors(corpus, tmp_path, capsys):
    result = run(corpus, tmp_path, steps=1)
    stored = checkpoint.load(result.checkpoint).weights
    assert printed_count(capsys.readouterr().out) == sum(array.size for array in stored.values())


@either
def test_one_step_moves_every_parameter_and_stores_no_fixed_table(
    backend, corpus, tmp_path, config
):
    result = run(corpus, tmp_path, config, steps=1, backend=backend.name)
    before, after = initial_weights(config, seed=1), checkpoint.load(result.checkpoint).weights
    assert set(after) == set(parameter_table(config))
    still = [name for name, array in before.items() if np.array_equal(after[name], array)]
    assert still == []


@either
def test_decay_reaches_no_bias_norm_gate_or_scale(backend, config):
    batch = np.arange(2 * 9, dtype=np.int32).reshape(2, 9)
    moved = []
    for weight_decay in (0.0, 0.5):
        recipe = dataclasses.replace(recipe_for("tuned", "pam", "5m"), weight_decay=weight_decay)
        learner = backend.Learner(backend.build(config, seed=3), recipe, "float32")
        with eager():
            learner.gradient(batch, 16)
        learner.update(1e-2)
        moved.append(learner.weights())
    table = parameter_table(config)
    decayed = {name for name in table if not np.array_equal(moved[0][name], moved[1][name])}
    assert decayed == {name for name, p in table.items() if p.kind in ("matrix", "embedding")}


@pytest.mark.slow
def test_one_real_step_at_100m(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    code = main(
        ["train", "--scale", "100m", "--data", str(corpus), "--out", str(out), "--steps", "1",
         "--seq-len", "16", "--batch-size", "1", "--backend", "mlx",
         "--eval-every", "0", "--sample-every", "0"]
    )  # fmt: skip
    assert code == 0
    stored = checkpoint.load(out).weights
    assert printed_count(capsys.readouterr().out) == sum(array.size for array in stored.values())
