"""How much a model's gradient changes when its weights, or the arithmetic, change a little.

    TORCH_COMPILE_DISABLE=1 python -m mlx_pam.benchmarks.conditioning
                                              families at 300k; rows to results/conditioning.jsonl
    python -m mlx_pam.benchmarks.conditioning --table                          the rows as a table

Two figures, before and after some training, each the median over a few batches:

    conditioning = (|g' - g| / |g|) / (|w' - w| / |w|),  g the gradient at w, g' at w' = w (1 + e n)
    bfloat16     = |g_bf16 - g| / |g|,                   both at w

w is the vector of all weights, n standard normal noise, one number per weight, and e = 1e-6: above
float32's rounding, below nearly every distance at which the network bends. g, g' and the training
are float32. Nothing is compiled with TORCH_COMPILE_DISABLE=1, which saves minutes here.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from mlx_pam.backend import Backend, Weights, get_backend
from mlx_pam.benchmarks import machine, rows
from mlx_pam.config import Family, ModelConfig, Recipe, Scale, TrainConfig
from mlx_pam.parameters import initial_weights
from mlx_pam.training.plan import Plan, make_plan
from mlx_pam.training.schedule import learning_rate

RESULTS = rows.RESULTS / "conditioning.jsonl"
MODELS = ("pam", "sam-matched", "transformer")
CHANGE = 1e-6
Row = dict[str, Any]
Gradient = Callable[[Weights, np.ndarray], np.ndarray]
"""(weights, batch `[B, T+1]`) -> the gradient of the mean loss, as one vector."""


class Gradients:
    """The gradient of the mean loss of a batch at any weights of one model, as one vector."""

    def __init__(self, backend: Backend, config: ModelConfig, recipe: Recipe, dtype: str) -> None:
        # without clipping and with a first moment that forgets, AdamW's moment is the gradient
        recipe = dataclasses.replace(recipe, betas=(0.0, recipe.betas[1]), clip_norm=1e30)
        self._learner = backend.Learner(backend.build(config), recipe, dtype, False)
        self._start = self._learner.optimizer()

    def __call__(self, weights: Weights, batch: np.ndarray) -> np.ndarray:
        """batch `[B, T+1]` -> the gradient in float64, weights in the order of their names."""
        self._learner.restore(weights, self._start)
        self._learner.gradient(batch, batch[:, 1:].size)
        self._learner.update(0.0)
        moments = self._learner.optimizer()
        return _vector({name: moments[f"exp_avg.{name}"] for name in weights})


def conditioning(
    gradient: Gradient, weights: Weights, batches: Sequence[np.ndarray], seed: int = 0
) -> float:
    """Relative change of the gradient per relative change of the weights, the median of batches."""
    draw, found = np.random.default_rng(seed), []
    for batch in batches:
        near = {
            name: (weight * (1 + CHANGE * draw.standard_normal(weight.shape))).astype(np.float32)
            for name, weight in sorted(weights.items())
        }
        change = relative_difference(_vector(near), _vector(weights))
        found.append(relative_difference(gradient(near, batch), gradient(weights, batch)) / change)
    return float(np.median(found))


def rounding(
    gradient: Gradient, rounded: Gradient, weights: Weights, batches: Sequence[np.ndarray]
) -> float:
    """|g_rounded - g| / |g|, the median of batches."""
    pairs = ((rounded(weights, batch), gradient(weights, batch)) for batch in batches)
    return float(np.median([relative_difference(*pair) for pair in pairs]))


def relative_difference(other: np.ndarray, vector: np.ndarray) -> float:
    """|other - vector| / |vector|."""
    return float(np.linalg.norm(other - vector) / np.linalg.norm(vector))


def after_training(backend: Backend, plan: Plan) -> Weights:
    """The weights after the plan's steps in float32."""
    config = plan.config
    learner = backend.Learner(
        backend.build(plan.model, seed=config.seed), plan.recipe, config.dtype, False
    )
    batches = plan.batches()
    for step in range(1, plan.steps + 1):
        batch = batches.next()
        learner.gradient(batch, batch[:, 1:].size)
        learner.update(learning_rate(step, plan.steps, plan.recipe))
    return learner.weights()


def both_ends(plan: Plan, trained: Weights, batches: int) -> Row:
    """Both figures at a plan's first weights and at those after its steps, on its first batches."""
    source, backend = plan.batches(), get_backend(plan.config.backend)
    first = [source.next() for _ in range(batches)]
    exact, rounded = (
        Gradients(backend, plan.model, plan.recipe, dtype) for dtype in ("float32", "bfloat16")
    )
    row: Row = {}
    start = initial_weights(plan.model, plan.config.seed)
    for end, weights in (("start", start), ("end", trained)):
        row[f"conditioning_{end}"] = conditioning(exact, weights, first)
        row[f"bfloat16_{end}"] = rounding(exact, rounded, weights, first)
    return row


def measure(config: TrainConfig, batches: int) -> Row:
    """The row of a model: train it, and look at its gradient before and after."""
    plan, backend = make_plan(config), get_backend(config.backend)
    tokens = plan.steps * config.tokens_per_step
    return {
        "model": config.model, "scale": config.scale, "data": config.data, "seed": config.seed,
        "steps": plan.steps, "tokens": tokens, "backend": backend.description,
        **both_ends(plan, after_training(backend, plan), batches),
        **machine.describe(),
    }  # fmt: skip


def table(measured: Sequence[Row]) -> Iterator[str]:
    """A line for each model: both figures at the start and at the end."""
    yield "| model | steps | conditioning, start | end | bfloat16, start | end |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in measured:
        yield (
            f"| `{row['model']}` | {row['steps']:,} | {row['conditioning_start']:,.1f} | "
            f"{row['conditioning_end']:,.1f} | {row['bfloat16_start']:.1%} | "
            f"{row['bfloat16_end']:.1%} |"
        )


def _vector(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([arrays[name].astype(np.float64).ravel() for name in sorted(arrays)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=get_args(Family), default=MODELS)
    parser.add_argument("--scale", choices=get_args(Scale), default="300k")
    parser.add_argument("--data", default="sample", help="corpus, as in `mlx_pam train`")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64, help="of training, batches of 4 windows")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the rows")
    parser.add_argument("--table", action="store_true", help="print what is in --out, and leave")
    given = parser.parse_args(argv)
    if not given.table:
        for model in given.models:
            config = TrainConfig(
                model=model,
                scale=given.scale,
                data=given.data,
                tokenizer="bytes",
                seq_len=given.seq_len,
                batch_size=4,
                steps=given.steps,
                seed=given.seed,
                backend=given.backend,
            )
            rows.add(given.out, [measure(config, given.batches)])
    print("\n".join(table(rows.read(given.out))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
