"""What each of the two processes does that the tests of distributed training start; imported too.

The launcher gives it a file of jobs: name -> (kind, settings). What came of them goes to
`process-RANK.json` beside that file.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import run

from mlx_pam import processes
from mlx_pam.backend import get_backend
from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig, recipe_for
from mlx_pam.errors import MlxPamError
from mlx_pam.training.metrics import to_json
from mlx_pam.training.trainer import Trainer

SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 61}
FAMILIES = {"pam": PAMConfig(**SIZES), "sam": SAMConfig(**SIZES)}
FAMILIES["transformer"] = TransformerConfig(**SIZES)
RECIPE = dataclasses.replace(recipe_for("tuned", "pam", "5m"), clip_norm=0.5)
SECOND = processes.rank() == 1
LEARNERS = {"mlx": "mlx_pam.learner", "torch": "mlx_pam.torch.learner"}


def train(
    patch: pytest.MonkeyPatch, backend: str, fault: str | None = None, **settings: Any
) -> dict[str, Any]:
    """A run of the tiny model; the second process meets with the fault before its third step."""
    learner = importlib.import_module(LEARNERS[backend])
    step, loss = Trainer.train_step, learner.summed_loss

    def train_step(self: Trainer) -> Any:
        if SECOND and self.step == 2:
            if fault == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            if fault == "crash":
                raise RuntimeError("the second process has a fault")
            if fault == "nan":
                patch.setattr(learner, "summed_loss", lambda x, *rest: loss(x * math.nan, *rest))
        return step(self)

    patch.setattr(Trainer, "train_step", train_step)
    paths = {name: Path(settings.pop(name)) for name in ("corpus", "out")}
    return run(**paths, backend=backend, **settings).to_dict()


def learn(
    patch: pytest.MonkeyPatch,
    backend: str,
    family: str,
    parallel: str | None = None,
    dtype: str = "float32",
    recompute: bool = False,
) -> dict[str, Any]:
    """Two updates of two micro-batches; evaluation and decoding between and after them."""
    backend = get_backend(backend, parallel)
    learner = backend.Learner(backend.build(FAMILIES[family], seed=3), RECIPE, dtype, recompute)
    decoder = backend.Decoder(learner.model)
    draw = np.random.default_rng(0)
    told = ("loss", "halfway", "norm", "diagnostics", "evaluation", "logits")
    found: dict[str, list] = {name: [] for name in told}
    for _ in range(2):
        batch = draw.integers(SIZES["vocab_size"], size=(8, 18)).astype(np.int32)
        found["loss"].append(learner.gradient(batch[:4], 8 * 17))
        found["halfway"].append(learner.gradient_norm())
        found["loss"].append(learner.gradient(batch[4:], 8 * 17))
        found["norm"].append(learner.gradient_norm())
        found["diagnostics"].append(learner.diagnostics(batch[:1]))
        learner.update(1e-2)
        mask = np.arange(17) < np.array([[17], [17], [9], [0]])
        found["evaluation"].append(learner.evaluate(batch[:4], mask))
        decoder.prefill([[1, 2, 3], [4]])
        found["logits"].append(decoder.step(np.array([5, 6])).tolist())
    found["weights"] = [array.tolist() for array in learner.weights().values()]
    return found


KINDS = {"train": train, "learn": learn}


def main(jobs: Path) -> None:
    record = jobs.with_name(f"process-{processes.rank()}.json")
    backend = {"mlx.launch": "mlx", "torchrun": "torch"}[processes.started_by()]
    outcomes = {}
    for name, (kind, settings) in json.loads(jobs.read_text("utf-8")).items():
        with pytest.MonkeyPatch.context() as patch:
            try:
                outcomes[name] = KINDS[kind](patch, backend, **settings)
            except MlxPamError as error:
                outcomes[name] = {"error": f"{type(error).__name__}: {error}"}
        record.write_text(to_json(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
