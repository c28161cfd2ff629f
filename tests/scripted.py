"""A language model whose next logits are a function of all tokens so far; imported by tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlx_pam.config import PRESETS
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.language_model import LanguageModel

NextLogits = Callable[[tuple[int, ...]], np.ndarray]


class ScriptedBackend:
    """Stands where a `Backend` does; keeps every decoder that was made."""

    name = description = "scripted"

    def __init__(self) -> None:
        self.decoders: list[ScriptedDecoder] = []

    def leave_thread(self) -> None:
        self.threads_left = getattr(self, "threads_left", 0) + 1

    def Decoder(self, model: NextLogits, tokens: int = 0) -> ScriptedDecoder:
        self.decoders.append(ScriptedDecoder(model))
        return self.decoders[-1]


class ScriptedDecoder:
    def __init__(self, next_logits: NextLogits) -> None:
        self.next_logits = next_logits
        self.rows: list[tuple[int, ...]] = []

    def prefill(
        self, prompts: Sequence[Sequence[int]], before_chunk: Callable[[], object] = lambda: None
    ) -> np.ndarray:
        """A chunk is one token."""
        assert all(len(prompt) > 0 for prompt in prompts)
        for _ in range(max(map(len, prompts))):
            before_chunk()
        self.rows = [tuple(prompt) for prompt in prompts]
        return self._logits()

    def step(self, tokens: np.ndarray) -> np.ndarray:
        assert tokens.shape == (len(self.rows),)
        self.rows = [(*row, int(t)) for row, t in zip(self.rows, tokens, strict=True)]
        return self._logits()

    def _logits(self) -> np.ndarray:
        return np.stack([self.next_logits(row) for row in self.rows]).astype(np.float32)


def scripted(next_logits: NextLogits) -> LanguageModel:
    """A model with the GPT-2 tokenizer over the given logits."""
    tokenizer = gpt2()
    config = PRESETS["pam"]["5m"]
    return LanguageModel(config, tokenizer, ScriptedBackend(), next_logits)


def saying(text: str | Sequence[int], after: int) -> LanguageModel:
    """A model certain of this text, and then of the end, after a prompt of so many tokens."""
    script = gpt2().encode(text) if isinstance(text, str) else list(text)

    def next_logits(seen: tuple[int, ...]) -> np.ndarray:
        done = len(seen) - after
        logits = np.zeros(gpt2().vocab_size)
        logits[script[done] if done < len(script) else gpt2().end_of_text] = 50.0
        return logits

    return scripted(next_logits)


def undecided(seen: tuple[int, ...]) -> np.ndarray:
    """Logits that depend on every token so far, with many tokens about as likely."""
    return np.random.default_rng(seen).normal(0, 2, gpt2().vocab_size)
