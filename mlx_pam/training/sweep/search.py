"""The search for a peak learning rate: a grid, extended while its best rate lies at an edge."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from typing import Any

from mlx_pam import checkpoint
from mlx_pam.config import SweepConfig
from mlx_pam.config.rates import SEARCHED
from mlx_pam.training.sweep.run import Run

FACTOR = 2.0
LEAST_RATE = 1e-9
"""No rate below it is added: such a step changes hardly any weight in float32."""
MOST_EXTENSIONS = 3


def best_rate(losses: dict[float, float]) -> float | None:
    """The rate with the lowest finite loss, of equal ones the lowest; None where none is finite."""
    finite = {rate: loss for rate, loss in losses.items() if math.isfinite(loss)}
    return min(sorted(finite), key=finite.__getitem__, default=None)


def beyond(losses: dict[float, float]) -> list[float]:
    """Rates to try beyond the edges at which the best one lies; lower ones if all diverged."""
    best, lowest, highest = best_rate(losses), min(losses), max(losses)
    more = []
    if best in (None, lowest) and lowest / FACTOR >= LEAST_RATE:
        more.append(lowest / FACTOR)
    if best == highest and highest * FACTOR <= 1.0:
        more.append(highest * FACTOR)
    return more


@dataclass
class Search:
    """The search for one model at one scale, whose variants take its rate too."""

    model: str
    scale: str
    trials: list[Run]

    @classmethod
    def begin(cls, config: SweepConfig, model: str, scale: str) -> Search:
        search = cls(model, scale, [])
        search._add(config, config.search_rates)
        return search

    def extend(self, config: SweepConfig) -> bool:
        """After all trials: add rates where the best is at an edge; whether there are any."""
        more = [] if self._failure else beyond(self.losses())
        self._add(config, more)
        return bool(more)

    @property
    def best(self) -> float | None:
        return best_rate(self.losses())

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the lowest or the highest that was tried."""
        return self.best in (min(self.losses()), max(self.losses()))

    @property
    def error(self) -> str | None:
        """Why no rate can be chosen, once all trials have ended."""
        if self._failure is None and self.best is None:
            return f"no rate from {min(self.losses()):g} on came to a finite validation loss"
        return self._failure

    @property
    def _failure(self) -> str | None:
        """What ended a trial, other than that it diverged."""
        failed = (run for run in self.trials if run.state == "failed" and not run.diverged)
        return next((f"{run.name}: {run.error}" for run in failed), None)

    def losses(self) -> dict[float, float]:
        """Peak learning rate -> validation loss at the end, infinite where it is not finite."""
        return {run.config.lr: _loss(run) for run in self.trials}

    def entry(self, config: SweepConfig) -> dict[str, Any]:
        """What `learning_rates.json` holds of it."""
        tried = [
            {"rate": rate, "validation_loss": loss if math.isfinite(loss) else None}
            for rate, loss in sorted(self.losses().items())
        ]
        entry = {
            "rate": self.best,
            "origin": SEARCHED,
            "tokens": config.search_steps * config.tokens_per_step,
            "tokenizer": config.tokenizer,
            "data": config.data,
            "tried": tried,
        }
        return entry | ({"note": "at the edge of the rates tried"} if self.at_edge else {})

    def describe(self) -> str:
        """The choice, in a line."""
        line = f"searched  {self.model} {self.scale}: {self.best:g} of {len(self.trials)} rates"
        if self.at_edge:
            line += ", at their edge: a search with other rates, or more tokens, may find a better"
        return line

    def discard_checkpoints(self) -> None:
        """Free the disk once the choice is recorded; the logs of the trials stay."""
        for run in self.trials:
            (run.folder / checkpoint.BEST).unlink(missing_ok=True)
            for folder in checkpoint.step_folders(run.folder):
                shutil.rmtree(folder)

    def _add(self, config: SweepConfig, rates: list[float]) -> None:
        for rate in rates:
            settings = config.search_run(self.model, self.scale, rate)
            run = Run(settings, rate, "tried", is_trial=True)
            run.catch_up()
            if run.diverged:  # it would again
                run.state, run.error = "failed", "training diverged"
            self.trials.append(run)


def _loss(run: Run) -> float:
    finite = run.finished and run.validation_loss is not None
    return run.validation_loss if finite and math.isfinite(run.validation_loss) else math.inf
