"""Text written by the model in training, with the measures of how much it repeats itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mlx_pam.generate import stream
from mlx_pam.language_model import LanguageModel
from mlx_pam.sampling import PAPER_SAMPLING
from mlx_pam.training.metrics import repetition, unique_ratio


def draw_sample(
    model: LanguageModel,
    prompt: str,
    max_tokens: int,
    seed: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """A record with prompt, text, repetition of 3- and 4-grams and unique-token ratio.

    Drawn as the paper's samples are, and the same for the same weights and seed. None if
    interrupted.
    """
    pieces = stream(
        model, prompt, max_tokens=max_tokens, seed=seed, **dataclasses.asdict(PAPER_SAMPLING)
    )
    for _ in pieces:
        if interrupted():
            return None
    result = pieces.result()
    return {
        "prompt": prompt,
        "text": result.text,
        "repetition_3": repetition(result.tokens, 3),
        "repetition_4": repetition(result.tokens, 4),
        "unique_ratio": unique_ratio(result.tokens),
    }
