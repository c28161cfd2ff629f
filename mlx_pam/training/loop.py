"""A whole run: what is done before, between and after the steps."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mlx_pam import processes
from mlx_pam.backend import get_backend
from mlx_pam.config import ModelConfig, TrainConfig
from mlx_pam.evaluate import perplexity, split_loss
from mlx_pam.language_model import LanguageModel
from mlx_pam.training.interrupt import Interrupt
from mlx_pam.training.plan import make_plan
from mlx_pam.training.progress import display, duration, say
from mlx_pam.training.resume import changes, load_start, starting_point
from mlx_pam.training.samples import draw_sample
from mlx_pam.training.tracked_log import open_tracked_log
from mlx_pam.training.trackers import require_trackers
from mlx_pam.training.trainer import Diverged, Trainer

Status = Literal["finished", "stopped", "interrupted", "dry run"]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a session ended: `stopped` by `stop_after`, `interrupted` by a signal."""

    status: Status
    out: Path
    step: int
    tokens: int
    plan: dict[str, Any]
    """Parameters, tokens of each split, steps and recipe (`Plan.record`)."""
    checkpoint: Path | None = None
    loss: float | None = None
    """Of the last step of this session."""
    validation_loss: float | None = None
    """Of the last evaluation of this session."""
    elapsed: float = 0.0
    """Seconds of training, earlier sessions included."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON can hold it."""
        paths = {"out": str(self.out), "checkpoint": self.checkpoint and str(self.checkpoint)}
        return dataclasses.asdict(self) | paths


def train(config: TrainConfig, model_config: ModelConfig | None = None) -> TrainResult:
    """Train a model as `config` says; `model_config` stands in for the preset of its scale.

    Raises `ConfigError`, `DataError`, `BackendError` or `CheckpointError` before anything is
    written, and `Diverged` when a loss or a gradient is not finite.
    """
    require_trackers(config.track)
    quiet = not processes.is_main()
    console = Console(stderr=config.json, quiet=quiet, force_terminal=False if quiet else None)
    backend = get_backend(config.backend, config.parallel)
    newest = None if config.dry_run else backend.team.on_main(lambda: starting_point(config))
    plan = backend.team.main_first(lambda: make_plan(config, model_config))
    say(console, plan.describe(backend.description))
    if config.dry_run:
        say(console, "time     is measured when the run starts; this is a dry run")
        return TrainResult(
            status="dry run", out=config.run_folder, step=0, tokens=0, plan=plan.record()
        )
    plan.require_disk()
    start = load_start(newest, plan) if newest else None
    trainer = Trainer(plan, backend, start)
    if start is not None:
        say(console, f"resumed  {start.path}: step {trainer.step:,}, {trainer.tokens:,} tokens")
        for name, (then, now) in changes(start, config, backend.name).items():
            say(console, f"note: {name} was {then}, and is {now} from here on")
        del start  # its arrays are the learner's now
    left = plan.last_step - trainer.step
    if left > 0:
        seconds = trainer.measure()
        estimate = f"about {duration(seconds * left)}: {left:,} steps of {seconds:.3g} s"
        say(console, f"time     {estimate}, evaluations and checkpoints aside")
    return Session(trainer, console).run()


class Session:
    """The steps from where the trainer stands to the last one, and what falls due between them."""

    def __init__(self, trainer: Trainer, console: Console) -> None:
        self.trainer = trainer
        self.plan = trainer.plan
        self.config = trainer.plan.config
        self.console = console
        self.display = display(console, trainer.step, trainer.plan.last_step)
        self.interrupt = Interrupt()
        self.model = LanguageModel(
            self.plan.model, self.plan.tokenizer, trainer.backend, trainer.learner.model
        )
        self.loss: float | None = None
        self.validation_loss: float | None = None

    def run(self) -> TrainResult:
        """Train to the last step, or until a signal asks to leave; saves before it returns."""
        trainer = self.trainer
        resumed = trainer.step if trainer.saved else None
        with (
            closing(open_tracked_log(self.plan, resumed, self.display.say)) as self.log,
            self.interrupt,
            self.display,
        ):
            self.log.write("start", self._start_record())
            while trainer.step < self.plan.last_step and not self._interrupted():
                self._step()
                if self._due(self.config.eval_every):
                    self._evaluate()
                if self._due(self.config.sample_every):
                    self._sample()
                if self.config.save_every and trainer.step % self.config.save_every == 0:
                    self._save()
            if trainer.step > trainer.saved_step:
                self._save()
            status = self._status()
            self.log.write("end", self._at_step() | {"status": status})
        return self._result(status)

    def _due(self, every: int) -> bool:
        step = self.trainer.step
        at_end = step == self.plan.steps
        return every > 0 and (step % every == 0 or at_end) and not self._interrupted()

    def _step(self) -> None:
        try:
            record = self.trainer.train_step()
        except Diverged as error:
            self.log.write("diverged", error.record)
            raise
        self.loss = record.loss
        self.log.write("step", record)
        self.display.step(record)

    def _evaluate(self) -> None:
        losses = self._validation_losses()
        if losses is None:
            return
        loss = self.plan.corpus.mean_loss(losses)
        self.validation_loss = loss
        parts = losses if len(losses) > 1 else {}
        figures = {"loss": loss, "perplexity": perplexity(loss)}
        self.log.write(
            "evaluation", self._at_step() | figures | ({"parts": parts} if parts else {})
        )
        self.display.say(
            f"step {self.trainer.step:,}: validation loss {loss:.4f}, "
            f"perplexity {perplexity(loss):,.2f}"
            + "".join(f" · {label} {part:.4f}" for label, part in parts.items())
        )

    def _validation_losses(self) -> dict[str, float] | None:
        """The loss on the validation split of each part of the data; None if interrupted."""
        losses = {}
        for part in self.plan.corpus.parts:
            losses[part.label] = split_loss(
                self.trainer.learner,
                part.corpus.validation,
                self.config.seq_len,
                self.config.batch_size,
                progress=lambda done, all_: self.display.busy(
                    f"validating {done:,}/{all_:,} tokens"
                ),
                interrupted=self._interrupted,
            )
            if losses[part.label] is None:
                return None
        return losses

    def _sample(self) -> None:
        self.display.busy("writing a sample")
        sample = draw_sample(
            self.model,
            self.config.sample_prompt,
            self.config.sample_tokens,
            seed=self.config.seed + self.trainer.step,
            interrupted=self._interrupted,
        )
        if sample is None:
            return
        self.log.write("sample", self._at_step() | sample)
        self.display.say(
            f"step {self.trainer.step:,}: sample (3-grams repeated {sample['repetition_3']:.0%}, "
            f"4-grams {sample['repetition_4']:.0%}, unique tokens {sample['unique_ratio']:.0%})\n"
            f"  {sample['prompt']}{sample['text']}"
        )

    def _save(self) -> None:
        self.display.busy("saving")
        self.log.sync()
        path = self.trainer.save()
        self.log.write("checkpoint", self._at_step() | {"path": str(path)})

    def _interrupted(self) -> bool:
        return self.trainer.backend.team.any_of(self.interrupt.requested)

    def _how_to_go_on(self) -> str:
        if self.plan.model == self.config.model_config():
            command = self.config.command_line(resume=True, stop_after=None)
            return processes.launcher() + command
        return "mlx_pam.train(config, model_config), with resume=True and no stop_after"

    def _at_step(self) -> dict[str, int]:
        return {"step": self.trainer.step, "tokens": self.trainer.tokens}

    def _start_record(self) -> dict[str, Any]:
        backend = self.trainer.backend.description
        return self._at_step() | {
            "backend": backend,
            "config": self.config.to_dict(),
            "plan": self.plan.record(),
        }

    def _status(self) -> Status:
        if self.trainer.step == self.plan.steps:
            return "finished"
        return "interrupted" if self._interrupted() else "stopped"

    def _result(self, status: Status) -> TrainResult:
        trainer, plan = self.trainer, self.plan
        saved = trainer.saved or "nothing (no step was done)"
        say(self.console, f"{status} at step {trainer.step:,} of {plan.steps:,}; saved {saved}")
        if status != "finished":
            say(self.console, f"go on with: {self._how_to_go_on()}")
        return TrainResult(
            status=status,
            out=self.config.run_folder,
            step=trainer.step,
            tokens=trainer.tokens,
            plan=plan.record(),
            checkpoint=trainer.saved,
            loss=self.loss,
            validation_loss=self.validation_loss,
            elapsed=trainer.elapsed,
        )
