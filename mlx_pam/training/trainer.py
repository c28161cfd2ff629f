"""The state of a run and its one step: gradient, check, update."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mlx_pam import checkpoint
from mlx_pam.checkpoint import Checkpoint, Validation
from mlx_pam.errors import CheckpointError, MlxPamError, RunError
from mlx_pam.evaluate import perplexity
from mlx_pam.training.metrics import SkippedStep, StepRecord
from mlx_pam.training.plan import Plan
from mlx_pam.training.schedule import learning_rate

COUNTERS = ("elapsed", "skipped", "skipped_in_a_row")
"""What a checkpoint holds of a `Trainer` as it stands, beside step and tokens."""


class Diverged(MlxPamError):
    """A loss or gradient is not finite, and the run stops; it was not applied to the weights."""

    def __init__(self, record: SkippedStep, saved: Path | None) -> None:
        self.record = record
        again = f" in {record.in_a_row} steps in a row" if record.in_a_row > 1 else ""
        remedy = (
            f"the last good checkpoint is {saved}: --resume it with a lower --lr or --clip-norm, "
            "or with --on-nonfinite skip if it is single batches"
            if saved
            else "no checkpoint was saved yet: begin again with --overwrite and a lower --lr or a "
            "longer --warmup-steps"
        )
        super().__init__(
            f"training diverged at step {record.step}: loss and gradient norm must be finite, got "
            f"loss {record.loss:g} and gradient norm {record.grad_norm:g}{again} (learning rate "
            f"{record.lr:.3g}); {remedy}"
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
        self.skipped = 0
        """Updates that were left out."""
        self.skipped_in_a_row = 0
        self.diagnostics: dict[str, float] | None = None
        """Of the last step, where they were due (`Learner.diagnostics`)."""
        self.evaluated = self.sampled = 0
        """The last steps at which that was done."""
        self.validation_loss: float | None = None
        """Of the last evaluation; None if it was not finite."""
        self.best: Validation | None = None
        """Of a checkpoint of this run."""
        self.saved = start.path if start else None
        weights = start.weights if start else None
        config = plan.config
        model = backend.build(plan.model, weights, seed=config.seed)
        self.learner = backend.Learner(
            model,
            plan.recipe,
            config.dtype,
            config.gradient_checkpointing,
            config.deterministic,
        )
        if start is not None:
            self.learner.restore(start.weights, start.optimizer)
            self.batches.restore(start.training["data"])
            self.step = start.training["step"]
            for name in COUNTERS:
                setattr(self, name, start.training.get(name, getattr(self, name)))
            self.best = self._recorded_best()
        self.saved_step = self.step

    def _recorded_best(self) -> Validation | None:
        run = self.plan.config.run_folder

        def read() -> dict[str, Any] | None:
            best = checkpoint.best(run)
            return best and asdict(best)

        found = self.backend.team.on_main(read)
        return found and Validation(**found)

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

    def train_step(self) -> StepRecord | SkippedStep:
        """One update from `accumulate` micro-batches; raises `Diverged` before it would do harm.

        Each token weighs the same, whatever micro-batch it falls in: the gradient is that of the
        sum of all losses over the number of all tokens.
        """
        began = time.perf_counter()
        config = self.plan.config
        total = config.tokens_per_step
        losses = []
        for _ in range(config.accumulate):
            batch = self.batches.next()
            losses.append(self.learner.gradient(batch, total))
        loss = math.fsum(losses) / total
        grad_norm = self.learner.gradient_norm()
        lr = learning_rate(self.step + 1, self.plan.steps, self.plan.recipe)
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        began += self._diagnose(batch[:1], finite)
        if finite:
            self.learner.update(lr, grad_norm)
            self.skipped_in_a_row = 0
        else:
            self.learner.discard()
            self.skipped += 1
            self.skipped_in_a_row += 1
        seconds = time.perf_counter() - began
        self.step += 1
        self.elapsed += seconds
        figures = {"step": self.step, "tokens": self.tokens, "loss": loss}
        figures |= {"lr": lr, "grad_norm": grad_norm}
        if finite:
            return StepRecord(
                **figures,
                perplexity=perplexity(loss),
                tokens_per_s=total / seconds,
                peak_memory=self.backend.peak_memory(),
                elapsed=self.elapsed,
            )
        record = SkippedStep(**figures, skipped=self.skipped, in_a_row=self.skipped_in_a_row)
        if record.in_a_row >= (config.max_skips if config.on_nonfinite == "skip" else 1):
            raise Diverged(record, self.saved)
        return record

    def _diagnose(self, window: np.ndarray, finite: bool) -> float:
        """Where that is due, take the diagnostics; the seconds that it took, none of training."""
        began, every = time.perf_counter(), self.plan.config.diagnostics_every
        due = every > 0 and ((self.step + 1) % every == 0 or not finite)
        self.diagnostics = self.learner.diagnostics(window) if due else None
        return time.perf_counter() - began

    def note_validation(self, loss: float) -> None:
        """Take up the loss of the validation split at this step."""
        self.evaluated = self.step
        self.validation_loss = loss if math.isfinite(loss) else None

    @property
    def improved(self) -> bool:
        """Whether the validation loss at this very step is below that of the best checkpoint."""
        if self.validation_loss is None or self.evaluated != self.step:
            return False
        return self.best is None or self.validation_loss < self.best.loss

    @property
    def updated(self) -> bool:
        """Whether the weights have changed since the last checkpoint."""
        return self.step - self.skipped_in_a_row > self.saved_step

    def save(self) -> Path:
        """Write a checkpoint of this step, unless it exists, and remove those no longer kept.

        If only skipped steps lie between, it replaces the checkpoint of the same weights.
        """
        run = self.plan.config.run_folder
        same = None if self.updated or self.saved is None else self.saved
        arrays = ()
        if self.step > self.saved_step:
            arrays = (self.learner.weights(), self.learner.optimizer())  # asked in every process
        if self.improved:
            self.best = Validation(self.step, self.validation_loss)

        def write() -> Path:
            folder = checkpoint.step_folder(run, self.step)
            if arrays:
                checkpoint.save(
                    folder,
                    self.plan.model,
                    *arrays,
                    self.training_record(),
                    self.plan.tokenizer.files,
                )
            if self.best and self.best.step == self.step:
                checkpoint.record_best(run, self.best)
            checkpoint.prune(run, self.plan.config.keep, superseded=same if arrays else None)
            return folder

        try:
            self.saved = self.backend.team.on_main(write)
        except CheckpointError as error:
            raise RunError(
                f"{error}; the run stops at step {self.step}: put that right and add --resume to "
                f"go on from {self.saved or 'the beginning, for nothing was saved yet'}"
            ) from error
        self.saved_step = self.step
        return self.saved

    def training_record(self) -> dict[str, Any]:
        """What `training.json` holds: where the run stands, and on what."""
        plan = self.plan
        return {
            "step": self.step,
            "tokens": self.tokens,
            **{name: getattr(self, name) for name in COUNTERS},
            "data": {
                **plan.corpus.record(),
                "tokenizer_fingerprint": plan.tokenizer.fingerprint,
                **self.batches.state(),
            },
            "tokenizer": plan.tokenizer.name,
            "backend": self.backend.name,
            "config": plan.config.to_dict(),
        } | {key: plan.record()[key] for key in ("steps", "recipe")}
