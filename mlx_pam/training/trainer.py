"""The state of a run and its one step: gradient, check, update."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from mlx_pam import checkpoint
from mlx_pam.checkpoint import Checkpoint
from mlx_pam.errors import MlxPamError
from mlx_pam.evaluate import perplexity
from mlx_pam.training.metrics import StepRecord
from mlx_pam.training.plan import Plan
from mlx_pam.training.schedule import learning_rate


class Diverged(MlxPamError):
    """A step's loss or gradient is not finite; it was not applied to the weights."""

    def __init__(
        self, step: int, lr: float, loss: float, grad_norm: float, saved: Path | None
    ) -> None:
        self.record = {"step": step, "lr": lr, "loss": loss, "grad_norm": grad_norm}
        remedy = (
            f"the last good checkpoint is {saved}: resume it with a lower --lr"
            if saved
            else "no checkpoint was saved yet: begin again with a lower --lr and another --out"
        )
        super().__init__(
            f"training diverged at step {step}: loss and gradient norm must be finite, got loss "
            f"{loss:g} and gradient norm {grad_norm:g} (learning rate {lr:.3g}); {remedy}"
        )


class Trainer:
    """The learner, the data's cursor and the counters: all that a checkpoint has to hold.

    No random generator is part of the state: the initial weights are a function of the seed, the
    order of the data one of seed and epoch, each sample one of seed and step.
    """

    def __init__(self, plan: Plan, backend: Any, start: Checkpoint | None = None) -> None:
        self.plan = plan
        self.backend = backend
        self.batches = plan.batches()
        self.step = 0
        self.elapsed = 0.0
        self.saved = start.path if start else None
        weights = start.weights if start else None
        model = backend.build(plan.model, weights, seed=plan.config.seed)
        self.learner = backend.Learner(model, plan.recipe, plan.config.dtype)
        if start is not None:
            self.learner.restore(start.weights, start.optimizer)
            self.step = start.training["step"]
            self.elapsed = start.training["elapsed"]
            self.batches.restore(start.training["data"])
        self.saved_step = self.step

    @property
    def tokens(self) -> int:
        return self.batches.cursor * self.plan.config.seq_len

    def measure(self) -> float:
        """Seconds that a step will take, from one micro-batch whose gradient is thrown away."""
        batch = self.batches.peek()
        for _ in range(2):  # the first compiles
            began = time.perf_counter()
            self.learner.gradient(batch, self.plan.config.tokens_per_step)
            self.learner.discard()
        return (time.perf_counter() - began) * self.plan.config.accumulate

    def train_step(self) -> StepRecord:
        """One update from `accumulate` micro-batches; raises `Diverged` before it would do harm.

        Each token weighs the same, whatever micro-batch it falls in: the gradient is that of the
        sum of all losses over the number of all tokens.
        """
        began = time.perf_counter()
        total = self.plan.config.tokens_per_step
        losses = [
            self.learner.gradient(self.batches.next(), total)
            for _ in range(self.plan.config.accumulate)
        ]
        loss = math.fsum(losses) / total
        grad_norm = self.learner.gradient_norm()
        lr = learning_rate(self.step + 1, self.plan.steps, self.plan.recipe)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self.learner.discard()
            raise Diverged(self.step + 1, lr, loss, grad_norm, self.saved)
        self.learner.update(lr, grad_norm)
        seconds = time.perf_counter() - began
        self.step += 1
        self.elapsed += seconds
        return StepRecord(
            step=self.step,
            tokens=self.tokens,
            loss=loss,
            perplexity=perplexity(loss),
            lr=lr,
            grad_norm=grad_norm,
            tokens_per_s=total / seconds,
            peak_memory=self.backend.peak_memory(),
            elapsed=self.elapsed,
        )

    def save(self) -> Path:
        """Write a checkpoint of this step and remove those that are no longer kept."""
        config = self.plan.config
        weights, optimizer = self.learner.weights(), self.learner.optimizer()

        def write() -> Path:
            folder = checkpoint.step_folder(config.run_folder, self.step)
            record = self.training_record()
            saved = checkpoint.save(folder, self.plan.model, weights, optimizer, record)
            checkpoint.prune(config.run_folder, config.keep)
            return saved

        self.saved = self.backend.team.on_main(write)
        self.saved_step = self.step
        return self.saved

    def training_record(self) -> dict[str, Any]:
        """What `training.json` holds: where the run stands, and on what."""
        plan = self.plan
        return {
            "step": self.step,
            "tokens": self.tokens,
            "elapsed": self.elapsed,
            "data": {
                **plan.corpus.record(),
                "tokenizer_fingerprint": plan.tokenizer.fingerprint,
                **self.batches.state(),
            },
            "tokenizer": plan.tokenizer.name,
            "backend": self.backend.name,
            "config": plan.config.to_dict(),
        } | {key: plan.record()[key] for key in ("steps", "recipe")}
