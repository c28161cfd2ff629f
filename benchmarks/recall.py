"""Associative recall: what does each part of the `recall` variant do for models of one size?

    python -m mlx_pam.benchmarks.recall              train all of them; rows to results/recall.jsonl
    python -m mlx_pam.benchmarks.recall --table      the rows as a table

A text is `pairs` keys, each followed by its value, and then questions: a key that was shown and its
value again. Keys of a text differ; values are drawn freely, so nothing but the text itself tells
them. Models learn from the loss of every token and are asked for the value behind a question of
texts they have never seen. Chance is the most that a guess among the values shown can reach.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_pam.backend import Decoder, get_backend
from mlx_pam.benchmarks import machine, rows
from mlx_pam.config import ModelConfig, PAMConfig, SAMConfig, TransformerConfig, recipe_for, variant
from mlx_pam.parameters import parameter_count
from mlx_pam.training.schedule import learning_rate

RESULTS = rows.RESULTS / "recall.jsonl"
KEYS = VALUES = 32
SIZES: dict[str, Any] = {"num_layers": 2, "vocab_size": KEYS + VALUES}
PAM = PAMConfig(dim=32, num_heads=2, head_dim=16, **SIZES)
SAM = SAMConfig(dim=46, num_heads=2, head_dim=22, **SIZES)  # PAM's state and parameters
TRANSFORMER = TransformerConfig(dim=46, num_heads=2, head_dim=32, **SIZES)
RECALL = variant(PAM, "recall")
MODELS: dict[str, ModelConfig] = {
    "pam": PAM,
    "sam": SAM,
    "transformer": TRANSFORMER,
    "pam recall": RECALL,
    "sam recall": variant(SAM, "recall"),
    "pam recall, no convolution": dataclasses.replace(RECALL, conv_width=1),
    "pam recall, q and k free": dataclasses.replace(RECALL, qk_norm=None, query_scale=None),
    "pam recall, residual scale 0.1": dataclasses.replace(RECALL, alpha_pam_init=0.1),
}
Row = dict[str, Any]
SETTINGS = {"steps": 1200, "batch": 64, "pairs": 8, "questions": 12, "tests": 512, "every": 50}


def texts(draw: np.random.Generator, count: int, pairs: int, questions: int) -> np.ndarray:
    """`[count, 2 (pairs + questions)]`: keys below KEYS, values from there on."""
    keys = draw.permuted(np.tile(np.arange(KEYS), (count, 1)), axis=1)[:, :pairs]
    values = draw.integers(KEYS, KEYS + VALUES, (count, pairs))
    asked = draw.integers(0, pairs, (count, questions))
    order = np.concatenate([np.tile(np.arange(pairs), (count, 1)), asked], axis=1)
    shown = np.stack([np.take_along_axis(one, order, 1) for one in (keys, values)], axis=-1)
    return shown.reshape(count, -1).astype(np.int32)


def chance(test: np.ndarray, pairs: int) -> float:
    """Share of right answers of the best guess that binds nothing: the value shown most often."""
    shown = test[:, 1 : 2 * pairs : 2]  # [N, pairs]
    guesses = np.array([np.bincount(row).argmax() for row in shown])
    return float(np.mean(guesses == test[:, -1]))


def answered(decoder: Decoder, test: np.ndarray) -> float:
    """Share of texts whose last question is answered with its value before all other tokens."""
    logits = decoder.prefill(test[:, :-1].tolist())
    return float(np.mean(logits.argmax(axis=1) == test[:, -1]))


def learn(config: ModelConfig, lr: float, seed: int, given: argparse.Namespace) -> Row:
    """Train one model: its accuracy every `given.every` steps, and the seconds that it took."""
    backend, shape = get_backend(given.backend), (given.pairs, given.questions)
    recipe = dataclasses.replace(recipe_for("tuned", "pam", "300k"), peak_lr=lr, warmup_steps=50)
    learner = backend.Learner(backend.build(config, seed=seed), recipe, "float32", False)
    draw = np.random.default_rng([seed, 1])
    test = texts(np.random.default_rng([seed, 2]), given.tests, *shape)
    curve, begun = [], time.perf_counter()
    for step in range(1, given.steps + 1):
        batch = texts(draw, given.batch, *shape)
        learner.gradient(batch, batch[:, 1:].size)
        learner.update(learning_rate(step, given.steps, recipe))
        if step % given.every == 0 or step == given.steps:
            accuracy = answered(backend.Decoder(learner.model, 0), test)
            curve.append({"step": step, "accuracy": accuracy})
    return {
        "parameters": parameter_count(config),
        "tokens": given.steps * batch[:, 1:].size,
        "chance": chance(test, given.pairs),
        "accuracy": curve[-1]["accuracy"],
        "curve": curve,
        "seconds": time.perf_counter() - begun,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    for name, default in SETTINGS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what is in --out, and leave")
    given = parser.parse_args(argv)
    if given.table:
        print("\n".join(table(rows.read(given.out))))
        return 0
    settings = {key: getattr(given, key) for key in (*SETTINGS, "backend")}
    for seed in given.seeds:
        for name in given.models:
            for rate in given.rates:
                row = {"model": name, "lr": rate, "seed": seed, **settings}
                row |= learn(MODELS[name], rate, seed, given)
                rows.add(given.out, [row | machine.describe()])
                print(f"{name}, rate {rate:g}, seed {seed}: {row['accuracy']:.3f}", flush=True)
    return 0


def by_rate(measured: Sequence[Row], model: str) -> dict[float, list[Row]]:
    """The rows of a model: rate -> one for each seed, rates and seeds rising."""
    rates: dict[float, list[Row]] = {}
    for row in sorted(measured, key=lambda row: (row["lr"], row["seed"])):
        if row["model"] == model:
            rates.setdefault(row["lr"], []).append(row)
    return rates


def best_rate(rates: dict[float, list[Row]]) -> list[Row]:
    """The rows of the rate that answers most, of those with as many seeds as any."""
    seeds = max(map(len, rates.values()))
    tried = [rows for rows in rates.values() if len(rows) == seeds]
    return max(tried, key=lambda rows: sum(row["accuracy"] for row in rows))


def table(measured: Sequence[Row]) -> list[str]:
    """Accuracies seed by seed: a line for each model, a column for each rate."""
    rates = sorted({row["lr"] for row in measured})
    lines = [
        f"| model | parameters | {' | '.join(f'rate {rate:g}' for rate in rates)} |",
        "| --- | --- |" + " --- |" * len(rates),
    ]
    for name in MODELS:
        if found := by_rate(measured, name):
            cells = [", ".join(f"{r['accuracy']:.3f}" for r in found.get(lr, ())) for lr in rates]
            size = next(iter(found.values()))[0]["parameters"]
            lines.append(f"| {name} | {size:,} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
