"""Continues prompts: prefill once, then one recurrent step a token, at a fixed size of state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from mlx_pam.config import from_settings, require
from mlx_pam.continuation import Generation, GenerationConfig, Prompt, Texts
from mlx_pam.language_model import LanguageModel
from mlx_pam.sampling import SamplingConfig
from mlx_pam.text_state import TextState


@overload
def generate(
    model: LanguageModel,
    prompt: Prompt,
    config: SamplingConfig | None = None,
    *,
    state: TextState | None = None,
    **settings: Any,
) -> Generation: ...
@overload
def generate(
    model: LanguageModel,
    prompt: Sequence[Prompt],
    config: SamplingConfig | None = None,
    **settings: Any,
) -> list[Generation]: ...
def generate(model, prompt, config=None, *, state=None, **settings):
    """Continue a prompt, or several at once.

    prompt: text or token ids, or a list of those; an empty one starts from the end-of-text token,
    the mark between documents. state: a text to go on with, which the prompt, one and maybe empty,
    is added to; without a seed of its own it draws on as it would have. settings: fields of
    `GenerationConfig`, over those of `config`. Row r of a list draws with seed + r, so it is what
    it would be alone with that seed, whatever its neighbours are.
    """
    config = _resolved(config, settings)
    several = isinstance(prompt, Iterable) and not isinstance(prompt, str | bytes)
    require(several or isinstance(prompt, str), "prompt", PROMPTS, prompt)
    single = isinstance(prompt, str) or isinstance(next(iter(prompt), None), (int, np.integer))
    if state is not None and not single:
        single = len(prompt) == 0
        require(single, "prompt", "one text with a state", f"{len(prompt)} texts")
    texts = Texts(model, [prompt] if single else prompt, config, state)
    for _ in texts:
        pass
    results = [row.result() for row in texts.rows]
    return results[0] if single else results


def stream(
    model: LanguageModel,
    prompt: Prompt,
    config: SamplingConfig | None = None,
    *,
    state: TextState | None = None,
    before_chunk: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Stream:
    """Continue one prompt and hand out its text as it comes; arguments as those of `generate`.

    before_chunk: called before each chunk of the prompt is read, at the first piece; what it raises
    ends the text.
    """
    return Stream(model, prompt, _resolved(config, settings), state, before_chunk)


class Stream(Iterator[str]):
    """The pieces of a continuation: whole characters, none empty; joined they are its text."""

    def __init__(
        self,
        model: LanguageModel,
        prompt: Prompt,
        config: GenerationConfig,
        state: TextState | None = None,
        before_chunk: Callable[[], object] = lambda: None,
    ) -> None:
        self._texts = Texts(model, [prompt], config, state, before_chunk)
        self._pieces = (piece for (piece,) in self._texts if piece)

    def __next__(self) -> str:
        return next(self._pieces)

    def result(self) -> Generation:
        """The record of what has been drawn so far; complete when the pieces are at an end."""
        return self._texts.rows[0].result()

    def state(self) -> TextState:
        """Where the text stands after what has been drawn so far, to go on with elsewhere."""
        return self._texts.state()


PROMPTS = "a text, token ids, or a list of those"


def _resolved(config: SamplingConfig | None, settings: dict[str, Any]) -> GenerationConfig:
    given = dataclasses.asdict(config) if config else {}
    return from_settings(GenerationConfig, given | settings)
