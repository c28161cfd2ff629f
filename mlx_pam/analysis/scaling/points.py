"""What a folder of runs tells of scaling: of each finished run its size and its late losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlx_pam.analysis.curves import Curves, read_curves
from mlx_pam.analysis.runs import summarise
from mlx_pam.config import ModelConfig, model_config
from mlx_pam.errors import ConfigError
from mlx_pam.parameters import parameter_table
from mlx_pam.training.metrics import LOG, Record, read_log

SIZES = {"total": "all parameters", "body": "without the embedding"}
"""How the size of a model is counted."""
COMPARED = ("data", "tokenizer", "seq_len", "recipe", "tokens")
"""Settings that should be one and the same in runs whose losses are compared."""


@dataclass(frozen=True)
class Late:
    """Values of the late window: their mean, and their standard deviation if there are two."""

    mean: float
    deviation: float | None = None
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run, or one model of which a mean was published."""

    run: str
    family: str
    """Model and variant."""
    scale: str
    seed: int | None = None
    sizes: Mapping[str, int]
    """Parameters, by how they are counted."""
    loss: Late
    """Of evaluations, in nats."""
    perplexity: Late
    """Mean of exp(loss), which is more than exp of the mean."""
    training_loss: Late | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What `COMPARED` names."""
    curve: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False, compare=False)
    """Tokens trained on and loss at each evaluation, [N] each."""


def read_points(folder: Path, window: float) -> tuple[list[Point], dict[str, str]]:
    """The finished runs that lie directly in a folder, and why others are left out.

    `window` is the share of evaluations, and of steps, that is late.
    """
    points, left_out = [], {}
    for run in sorted(path.parent for path in folder.glob(f"*/{LOG}")):
        state = summarise(run, run.name).state
        if state != "finished":
            left_out[run.name] = state
            continue
        try:
            points.append(_point(run, window))
        except ConfigError as error:
            left_out[run.name] = str(error)
    return points, left_out


def _point(run: Path, window: float) -> Point:
    start = read_log(run, "start")[-1]
    config, plan = _record(start, "config"), _record(start, "plan")
    curves = read_curves(run)
    losses = curves.column("evaluation", "loss")
    if not len(losses):
        raise ConfigError("it has no evaluation")
    with np.errstate(over="ignore", invalid="ignore"):
        loss, perplexity = late(losses, window), late(np.exp(losses), window)
    if not math.isfinite(perplexity.mean):
        raise ConfigError("its late losses, or their perplexities, are not finite")
    if loss.mean <= 0:
        raise ConfigError("its loss is not above zero, and has no logarithm")
    training = curves.column("step", "loss")
    training = training[np.isfinite(training)]
    return Point(
        run=run.name,
        family=_family(config),
        scale=str(config.get("scale")),
        seed=config.get("seed"),
        sizes=sizes(model_config(plan.get("model"))),
        loss=loss,
        perplexity=perplexity,
        training_loss=late(training, window) if len(training) else None,
        settings={name: config[name] for name in COMPARED if name in config} | _tokens(curves),
        curve=_curve(curves),
    )


def sizes(model: ModelConfig) -> dict[str, int]:
    """Parameters of a model, by how they are counted (`SIZES`)."""
    table = parameter_table(model)
    total = sum(parameter.size for parameter in table.values())
    return {"total": total, "body": total - table["embedding.weight"].size}


def late(values: np.ndarray, window: float) -> Late:
    """Of the last share of the values, one of them at least."""
    values = values[-max(1, math.ceil(window * len(values) - 1e-9)) :]
    deviation = float(values.std(ddof=1)) if len(values) > 1 else None
    return Late(float(values.mean()), deviation, len(values))


def differences(points: Sequence[Point]) -> dict[str, list[str]]:
    """Settings in which runs differ that should not, and their values."""
    found = {}
    for name in COMPARED:
        values = dict.fromkeys(str(p.settings[name]) for p in points if name in p.settings)
        if len(values) > 1:
            found[name] = list(values)
    return found


def _family(config: Record) -> str:
    gate = "channel-gate" if config.get("protect") == "channel" else None
    words = (config.get("model"), config.get("variant"), gate)
    return " ".join(str(word) for word in words if word)


def _tokens(curves: Curves) -> dict[str, int]:
    tokens = curves.column("step", "tokens")
    return {"tokens": int(tokens[-1])} if len(tokens) and np.isfinite(tokens[-1]) else {}


def _curve(curves: Curves) -> tuple[np.ndarray, np.ndarray] | None:
    tokens, loss = curves.along("evaluation", "tokens"), curves.column("evaluation", "loss")
    if tokens is None:
        return None
    known = np.isfinite(tokens) & np.isfinite(loss)
    return tokens[known], loss[known]


def _record(start: Record, name: str) -> Record:
    value = start.get(name)
    return value if isinstance(value, dict) else {}
