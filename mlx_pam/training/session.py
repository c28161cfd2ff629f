"""The steps of a run from where it stands, and what is done between and after them."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mlx_pam import processes
from mlx_pam.evaluate import perplexity, split_loss
from mlx_pam.language_model import LanguageModel
from mlx_pam.training.interrupt import Interrupt
from mlx_pam.training.metrics import SkippedStep, records_of_step
from mlx_pam.training.progress import display, say
from mlx_pam.training.samples import draw_sample
from mlx_pam.training.tracked_log import open_tracked_log
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
    skipped: int = 0
    """Updates left out, earlier sessions included."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON can hold it."""
        paths = {"out": str(self.out), "checkpoint": self.checkpoint and str(self.checkpoint)}
        return dataclasses.asdict(self) | paths


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
        resumed = trainer.step if self.config.resume else None
        with (
            closing(open_tracked_log(self.plan, resumed, self.display.say)) as self.log,
            self.interrupt,
            self.display,
        ):
            self._take_up_what_was_done()
            self.log.write("start", self._start_record())
            self._between_steps()
            while trainer.step < self.plan.last_step and not self._interrupted():
                self._step()
                self._between_steps()
            if trainer.step > trainer.saved_step:
                self._save()
            status = self._status()
            self.log.write("end", self._at_step() | {"status": status})
        return self._result(status)

    def _take_up_what_was_done(self) -> None:
        """An interrupted session saves its last step, but may not evaluate it or draw a sample."""
        trainer, run = self.trainer, self.config.run_folder
        done = trainer.backend.team.on_main(lambda: records_of_step(run, trainer.step))
        if "evaluation" in done:
            trainer.note_validation(float(done["evaluation"]["loss"]))
        if "sample" in done:
            trainer.sampled = trainer.step

    def _between_steps(self) -> None:
        """Evaluate, sample and save where that is due at this step and was not done yet."""
        trainer, every = self.trainer, self.config.save_every
        if self._due(self.config.eval_every, trainer.evaluated):
            self._evaluate()
        if self._due(self.config.sample_every, trainer.sampled):
            self._sample()
        due = trainer.improved
        if trainer.step > trainer.saved_step:
            due = every > 0 and (due or (trainer.step % every == 0 and trainer.updated))
        if due:
            self._save()

    def _due(self, every: int, done: int) -> bool:
        step = self.trainer.step
        due = every > 0 and step > done and (step % every == 0 or step == self.plan.steps)
        return due and not self._interrupted()

    def _step(self) -> None:
        try:
            record = self.trainer.train_step()
        except Diverged as error:
            self._log_diagnostics()
            self.log.write("diverged", error.record)
            raise
        self._log_diagnostics()
        if isinstance(record, SkippedStep):
            self.log.write("skipped", record)
            self.display.say(
                f"step {record.step:,}: loss {record.loss:g}, gradient norm {record.grad_norm:g}: "
                f"update left out ({record.skipped:,} so far, {record.in_a_row:,} in a row)"
            )
            return
        self.loss = record.loss
        self.log.write("step", record)
        self.display.step(record)

    def _log_diagnostics(self) -> None:
        if self.trainer.diagnostics is not None:
            self.log.write("diagnostics", self._at_step() | self.trainer.diagnostics)

    def _evaluate(self) -> None:
        losses = self._validation_losses()
        if losses is None:
            return
        loss = self.plan.corpus.mean_loss(losses)
        self.trainer.note_validation(loss)
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
        self.trainer.sampled = self.trainer.step
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
            command = self.config.command_line(resume=True, overwrite=False, stop_after=None)
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
        if trainer.best:
            best = f"validation loss {trainer.best.loss:.4f} at step {trainer.best.step:,}"
            say(self.console, f"best {best}: {self.config.run_folder / 'best'}")
        if trainer.skipped:
            say(self.console, f"{trainer.skipped:,} updates were left out")
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
            skipped=trainer.skipped,
        )
