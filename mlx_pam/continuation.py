"""Texts in the making: what is drawn, shown and remembered of each, a token at a time."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mlx_pam.config import require, require_count
from mlx_pam.data.tokenizer import StreamDecoder
from mlx_pam.language_model import LanguageModel
from mlx_pam.sampling import SamplingConfig, draw, log_probability
from mlx_pam.stop_texts import StopTexts
from mlx_pam.text_state import RECENT, TextState

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
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        stop = () if stop is None else stop
        require(isinstance(stop, list | tuple), "stop", "a text or a list of texts", self.stop)
        stop = tuple(stop)
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


def _is_id(token: object) -> bool:
    return isinstance(token, int | np.integer) and not isinstance(token, bool)


class Row:
    """One prompt's continuation in the making."""

    def __init__(
        self,
        model: LanguageModel,
        prompt: Prompt,
        config: GenerationConfig,
        seed: int,
        state: TextState | None = None,
    ) -> None:
        tokenizer = model.tokenizer
        begins = state is None or state.recent[-1:] == (tokenizer.end_of_text,)
        is_text = isinstance(prompt, str)
        if not is_text:
            ids = isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes)
            whole = ids and all(map(_is_id, prompt))
            require(whole, "prompt", "a text or token ids, which are whole numbers", prompt)
        ids = tokenizer.encode(prompt, begins) if is_text else [int(i) for i in prompt]
        for token in ids:
            inside = 0 <= token < tokenizer.vocab_size
            require(inside, "a token of the prompt", f"in 0..{tokenizer.vocab_size - 1}", token)
        self.start_ids = ids if ids or state else [tokenizer.end_of_text]
        self.last = -1  # none is drawn yet
        self.finish_reason: FinishReason | None = None if config.max_tokens else "length"
        self._prompt = prompt if is_text else tokenizer.decode(ids)
        self._prompt_tokens = len(ids)
        self._context = [*(state.recent if state else ()), *ids]
        self._given = len(self._context)
        self._shown: list[str] = []
        self._logprobs: list[float] = []
        self._first_time = self._last_time = 0.0
        self.config = config
        self._seed = seed
        self._generator = np.random.default_rng(seed)
        self._model = model
        self._tokenizer = tokenizer
        before = self.start_ids or list(state.recent)
        self._characters = StreamDecoder(tokenizer, before[-1:] == [tokenizer.end_of_text])
        self._stops = StopTexts(config.stop)
        if state is not None:
            self._go_on(state)

    def _go_on(self, state: TextState) -> None:
        """Draw on as the text would have, and complete the character that it may have ended in."""
        window, forgotten = self.config.repetition_window, state.tokens > len(state.recent)
        if self.config.repetition_penalty > 1 and forgotten:
            inside = 0 < window <= RECENT
            require(inside, "repetition_window", f"1 to {RECENT} with a state", window)
        if self.config.seed is None:
            self._seed, self._generator = state.seed, copy.deepcopy(state.generator)
        if not self.start_ids:
            for token in state.recent[-4:]:  # no character has more bytes
                self._characters.push(token)

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
        return self._context[self._given :]

    def state(self, memories: dict[str, np.ndarray], logits: np.ndarray) -> TextState:
        """Where the text stands, by what a decoder that has read all of it remembers."""
        return TextState(
            model=self._model,
            memories=memories,
            logits=logits,
            recent=tuple(self._context[-RECENT:]),
            generator=copy.deepcopy(self._generator),
            seed=self._seed,
        )

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


class Texts:
    """Prompts that are continued together, a token each at a time."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        config: GenerationConfig,
        state: TextState | None = None,
        before_chunk: Callable[[], object] = lambda: None,
    ) -> None:
        if state is not None:
            state.require_model(model)
        seed = secrets.randbits(32) if config.seed is None else config.seed
        self.rows = [
            Row(model, prompt, config, seed + r, state) for r, prompt in enumerate(prompts)
        ]
        self._model = model
        self._state = state
        self._before_chunk = before_chunk
        self._decoder: Any = None
        self._logits = np.zeros(0, np.float32)
        self._behind = False  # by the token that each row has drawn last

    def __iter__(self) -> Iterator[list[str]]:
        """Draw a token for every row that is not finished, and yield the rows' new pieces."""
        while not all(row.finish_reason for row in self.rows):
            logits = self._read()
            self._behind = True
            yield [
                "" if row.finish_reason else row.take(logits[r]) for r, row in enumerate(self.rows)
            ]

    def state(self) -> TextState:
        logits = self._read()
        return self.rows[0].state(self._decoder.state(), logits[0].copy())

    def _read(self) -> np.ndarray:
        """Logits `[B, V]` after all tokens so far."""
        if self._decoder is None:
            self._decoder = self._model.decoder(self.rows[0].config.max_tokens)
            self._begin()
        elif self._behind:
            self._logits = self._decoder.step(np.array([row.last for row in self.rows]))
        self._behind = False
        return self._logits

    def _begin(self) -> None:
        prompts = [row.start_ids for row in self.rows]
        if self._state is None:
            self._logits = self._decoder.prefill(prompts, self._before_chunk)
            return
        self._decoder.restore(self._state.memories)
        self._logits = self._state.logits[None]  # [1, V]
        if prompts[0]:
            self._logits = self._decoder.extend(prompts, self._before_chunk)
