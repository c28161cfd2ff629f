"""One run of a sweep: its folder, and what its log tells of how far it is."""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlx_pam.config import TrainConfig
from mlx_pam.evaluate import perplexity
from mlx_pam.parameters import parameter_count
from mlx_pam.training.metrics import LOG, Record, parse_record

OUTPUT = "output.txt"
"""What the processes of a run have printed, in its folder."""

State = Literal["waiting", "running", "finished", "failed", "interrupted", "left out"]


@dataclass(eq=False)
class Run:
    """A run of the queue and where it stands; `look` brings that up to date."""

    config: TrainConfig
    lr: float | None = None
    """Peak learning rate; None while it is searched."""
    lr_origin: str = "by search"
    """Where it comes from."""
    is_trial: bool = False
    """Whether it is one of the search."""
    state: State = "waiting"
    error: str | None = None
    """Why it failed or was left out, in a line."""
    step: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    """Of the last evaluation."""
    tokens_per_s: float | None = None
    seconds_per_step: float | None = None
    """Of the last session, evaluations and checkpoints included."""
    diverged: bool = False
    _read: int = field(default=0, repr=False)
    """Bytes of the log that were read."""
    _last: bytes = field(default=b"", repr=False)
    """The last line of them."""
    _session: tuple[int, float] | None = field(default=None, repr=False)
    """Step and time at which the last session began."""
    _evaluated: int = field(default=-1, repr=False)
    """Step of the last evaluation."""
    _ended: int = field(default=-1, repr=False)
    """Step at which the last session was done with the schedule, -1 if it was not."""

    @property
    def folder(self) -> Path:
        return self.config.run_folder

    @property
    def name(self) -> str:
        """That of the run folder, seen from the sweep's."""
        return f"search/{self.folder.name}" if self.is_trial else self.folder.name

    @property
    def output(self) -> Path:
        return self.folder / OUTPUT

    @property
    def steps(self) -> int:
        return self.config.steps or 0

    @functools.cached_property
    def parameters(self) -> int:
        return parameter_count(self.config.model_config())

    @property
    def begun(self) -> bool:
        """Whether the folder holds something to resume, as far as the system lets one look."""
        with suppress(OSError):
            return (self.folder / LOG).exists()
        return False

    @property
    def finished(self) -> bool:
        """Whether the last session came to the end of the schedule and evaluated it."""
        return self._ended == self.steps and self._evaluated == self.steps

    def words(self) -> list[str]:
        """The words of the command that begins the run or goes on with it, after `mlx_pam`."""
        return shlex.split(self.config.command_line(resume=self.begun))[1:]

    def set_rate(self, lr: float, origin: str) -> None:
        """Give the run its peak learning rate."""
        self.lr, self.lr_origin = lr, origin
        self.config = dataclasses.replace(self.config, lr=lr)

    def catch_up(self) -> None:
        """What an earlier sweep has left of it."""
        try:
            self.look()
        except OSError as error:
            self.fail(error)
        if self.finished:
            self.state = "finished"

    def fail(self, error: OSError) -> None:
        """What the system refuses in the folder of a run ends that run alone."""
        reason = error.strerror or str(error)
        self.state, self.error = "failed", f"cannot work in {self.folder}: {reason}"

    def look(self) -> None:
        """Read what the log has got since the last look."""
        with suppress(FileNotFoundError), (self.folder / LOG).open("rb") as log:
            log.seek(self._read - len(self._last))
            if log.read(len(self._last)) != self._last:  # a resumed run drops what is not saved
                self._read, self._evaluated, self._ended = log.seek(0), -1, -1
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read, self._last = self._read + len(line), line
                with suppress(LookupError, TypeError, ValueError):  # no record of ours
                    self._take_up(parse_record(line) or {})

    def _take_up(self, record: Record) -> None:
        event, step, time = record["event"], record.get("step", 0), record.get("time", 0.0)
        if event == "start":
            self._session, self._ended, self.diverged = (step, time), -1, False
            self.step = step
        elif event == "step":
            self.step, self.loss = step, float(record["loss"])
            self.tokens_per_s = record.get("tokens_per_s")
            if self._session and step > self._session[0]:
                first, began = self._session
                self.seconds_per_step = (time - began) / (step - first)
        elif event == "evaluation":
            self._evaluated, self.validation_loss = step, float(record["loss"])
        elif event == "diverged":
            self.diverged = True
        elif event == "end" and record.get("status") == "finished":
            self._ended = step

    def to_dict(self) -> dict[str, Any]:
        """What the result of a sweep says of the run."""
        loss, config = self.validation_loss, self.config
        return {
            "name": self.name,
            "path": str(self.folder),
            "model": config.model,
            "variant": config.variant,
            "scale": config.scale,
            "seed": config.seed,
            "parameters": self.parameters,
            "lr": self.lr,
            "lr_origin": self.lr_origin,
            "state": self.state,
            "step": self.step,
            "steps": self.steps,
            "tokens": self.step * config.tokens_per_step,
            "loss": self.loss,
            "validation_loss": loss,
            "validation_perplexity": None if loss is None else perplexity(loss),
            "tokens_per_s": self.tokens_per_s,
            "error": self.error,
        }


def seconds_left(runs: list[Run], jobs: int) -> float | None:
    """Seconds until all runs are done, as far as one can tell; None before the first steps.

    A run whose pace is not known is taken to need time in proportion to its parameters.
    """
    known = [run for run in runs if run.seconds_per_step]
    if not known:
        return None
    each = math.fsum(run.seconds_per_step for run in known) / sum(run.parameters for run in known)
    left = math.fsum(
        (run.steps - run.step) * (run.seconds_per_step or each * run.parameters)
        for run in runs
        if run.state in ("waiting", "running")
    )
    return left / jobs
