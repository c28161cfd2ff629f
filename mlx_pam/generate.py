"""Continues prompts: prefill once, then one recurrent step a token, at a fixed size of state."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from mlx_pam.config import from_settings, require, require_count
from mlx_pam.data.tokenizer import StreamDecoder
from mlx_pam.language_model import LanguageModel
from mlx_pam.sampling import SamplingConfig, draw, log_probability
from mlx_pam.stop_texts import StopTexts

Prompt = str | Sequence[int]
"""Text, or the ids of its tokens."""
FinishReason = Literal["length", "stop", "end"]
"""`max_tokens` were drawn, a stop text came, or the end-of-text token."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(SamplingConfig):
    """How a prompt is continued."""

    max_tokens: int = 100
    """Most tokens to generate."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; they are not part of it."""
    seed: int | None = None
    """Repeats an output; without one it differs each time, and the seed that was used is told."""
    logprobs: bool = False
    """Record the model's own log-probability of each token (--json shows it)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("max_tokens", self.max_tokens, least=0)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in stop:
            require(isinstance(text, str) and text != "", "stop", "a text that is not empty", text)
        object.__setattr__(self, "stop", stop)
        if self.seed is not None:
            require_count("seed", self.seed, least=0)


@dataclass(frozen=True)
class Generation:
    """A prompt's continuation, and what is needed to repeat it."""

    prompt: str
    text: str
    """The continuation alone, without the stop text that ended it."""
    tokens: tuple[int, ...]
    """Every token drawn, those of a stop text and the end-of-text token among them."""
    logprobs: tuple[float, ...] | None
    """Log-probability of each token, if asked for."""
    seed: int
    """The seed that repeats this continuation when its prompt is given alone."""
    finish_reason: FinishReason | None
    """None while it is not finished."""
    prompt_tokens: int
    tokens_per_s: float
    """Tokens after the first, by the seconds from it to the last; 0 when there is none."""


@overload
def generate(
    model: LanguageModel, prompt: Prompt, config: SamplingConfig | None = None, **settings: Any
) -> Generation: ...
@overload
def generate(
    model: LanguageModel,
    prompt: Sequence[Prompt],
    config: SamplingConfig | None = None,
    **settings: Any,
) -> list[Generation]: ...
def generate(model, prompt, config=None, **settings):
    """Continue a prompt, or several at once.

    prompt: text or token ids, or a list of those; an empty one starts from the end-of-text token,
    the mark between documents. settings: fields of `GenerationConfig`, over those of `config`.
    Row r of a list draws with seed + r, so it is what it would be alone with that seed, whatever
    its neighbours are.
    """
    config = _resolved(config, settings)
    single = isinstance(prompt, str) or isinstance(next(iter(prompt), None), (int, np.integer))
    rows = _rows(model, [prompt] if single else prompt, config)
    for _ in _advance(model, rows):
        pass
    results = [row.result() for row in rows]
    return results[0] if single else results


def stream(
    model: LanguageModel, prompt: Prompt, config: SamplingConfig | None = None, **settings: Any
) -> Stream:
    """Continue one prompt and hand out its text as it comes; arguments as those of `generate`."""
    return Stream(model, prompt, _resolved(config, settings))


class Stream(Iterator[str]):
    """The pieces of a continuation: whole characters, none empty; joined they are its text."""

    def __init__(self, model: LanguageModel, prompt: Prompt, config: GenerationConfig) -> None:
        rows = _rows(model, [prompt], config)
        self._row = rows[0]
        self._pieces = (piece for (piece,) in _advance(model, rows) if piece)

    def __next__(self) -> str:
        return next(self._pieces)

    def result(self) -> Generation:
        """The record of what has been drawn so far; complete when the pieces are at an end."""
        return self._row.result()


class _Row:
    """One prompt's continuation in the making."""

    def __init__(
        self, model: LanguageModel, prompt: Prompt, config: GenerationConfig, seed: int
    ) -> None:
        tokenizer = model.tokenizer
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else [int(i) for i in prompt]
        for token in ids:
            inside = 0 <= token < tokenizer.vocab_size
            require(inside, "a token of the prompt", f"in 0..{tokenizer.vocab_size - 1}", token)
        self.start_ids = ids or [tokenizer.end_of_text]
        self.last = self.start_ids[-1]
        self.finish_reason: FinishReason | None = None if config.max_tokens else "length"
        self._prompt = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
        self._prompt_tokens = len(ids)
        self._context = list(ids)
        self._shown: list[str] = []
        self._logprobs: list[float] = []
        self._first_time = self._last_time = 0.0
        self.config = config
        self._seed = seed
        self._generator = np.random.default_rng(seed)
        self._tokenizer = tokenizer
        self._characters = StreamDecoder(tokenizer)
        self._stops = StopTexts(config.stop)

    def take(self, logits: np.ndarray) -> str:
        """Draw the next token; returns the text that may now be shown, "" inside a character."""
        logits = logits[: self._tokenizer.vocab_size]  # rows of a padded vocabulary have no text
        token = self.last = draw(logits, self.config, self._context, self._generator)
        self._context.append(token)
        self._last_time = time.perf_counter()
        self._first_time = self._first_time or self._last_time
        if self.config.logprobs:
            self._logprobs.append(log_probability(logits, token))
        if token == self._tokenizer.end_of_text:
            self.finish_reason = "end"
            piece = ""
        else:
            piece = self._stops.push(self._characters.push(token))
            if len(self._tokens) == self.config.max_tokens:
                self.finish_reason = "length"
        if self.finish_reason and not self._stops.found:
            piece += self._stops.push(self._characters.flush())
        if self._stops.found:
            self.finish_reason = "stop"
        if self.finish_reason:
            piece += self._stops.flush()
        self._shown.append(piece)
        return piece

    @property
    def _tokens(self) -> list[int]:
        return self._context[self._prompt_tokens :]

    def result(self) -> Generation:
        seconds = self._last_time - self._first_time
        return Generation(
            prompt=self._prompt,
            text="".join(self._shown),
            tokens=tuple(self._tokens),
            logprobs=tuple(self._logprobs) if self.config.logprobs else None,
            seed=self._seed,
            finish_reason=self.finish_reason,
            prompt_tokens=self._prompt_tokens,
            tokens_per_s=(len(self._tokens) - 1) / seconds if seconds > 0 else 0.0,
        )


def _resolved(config: SamplingConfig | None, settings: dict[str, Any]) -> GenerationConfig:
    given = dataclasses.asdict(config) if config else {}
    return from_settings(GenerationConfig, given | settings)


def _rows(model: LanguageModel, prompts: Sequence[Prompt], config: GenerationConfig) -> list[_Row]:
    seed = secrets.randbits(32) if config.seed is None else config.seed
    return [_Row(model, prompt, config, seed + r) for r, prompt in enumerate(prompts)]


def _advance(model: LanguageModel, rows: Sequence[_Row]) -> Iterator[list[str]]:
    """Draw a token for every row that is not finished, and yield the rows' new pieces of text."""
    if all(row.finish_reason for row in rows):
        return
    decoder = model.decoder(rows[0].config.max_tokens)
    logits = decoder.prefill([row.start_ids for row in rows])  # [B, V]
    while True:
        yield ["" if row.finish_reason else row.take(logits[r]) for r, row in enumerate(rows)]
        if all(row.finish_reason for row in rows):
            return
        logits = decoder.step(np.array([row.last for row in rows]))
