"""Draws the next token from a model's logits; written once, in NumPy, for every backend.

The order is repetition penalty, temperature, top-k, top-p, min-p, draw. (mlx-lm's `make_sampler`
applies the temperature after top-p and min-p, and refuses a top-k of the whole vocabulary, so it is
not used.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlx_pam.config import require_choice, require_count, require_range
from mlx_pam.errors import MlxPamError


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a token is chosen from logits; the settings apply in the order in which they stand."""

    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in the window, multiplies the negative ones; 1: off."""
    repetition_rule: Literal["multiplicative", "additive"] = "multiplicative"
    """multiplicative: the usual rule, above. additive: subtracts (penalty - 1) * max(best - mean
    logit, 1) from the logits of tokens in the window; never raises one's probability."""
    repetition_window: int = 64
    """How many of the last tokens (prompt and output) the penalty covers; 0 covers them all."""
    temperature: float = 1.0
    """Divides the logits: below 1 safer, above 1 wilder, 0 always the most likely token."""
    top_k: int = 50
    """Keep only the K most likely tokens; 0 keeps all."""
    top_p: float = 0.9
    """Keep only the most likely tokens that together reach this probability; 1 keeps all."""
    min_p: float = 0.0
    """Keep only tokens at least this likely relative to the most likely one; 0 keeps all."""

    def __post_init__(self) -> None:
        require_range("repetition_penalty", self.repetition_penalty, 1.0, 1e6)
        require_choice("repetition_rule", self.repetition_rule, ("multiplicative", "additive"))
        require_count("repetition_window", self.repetition_window, least=0)
        require_range("temperature", self.temperature, 0.0, 100.0)
        require_count("top_k", self.top_k, least=0)
        require_range("top_p", self.top_p, 0.0, 1.0)
        require_range("min_p", self.min_p, 0.0, 1.0)


PAPER_SAMPLING = SamplingConfig(temperature=1.0, top_k=50, top_p=0.9, repetition_penalty=1.2)
"""The settings with which the paper draws samples during training."""

BLOCK = 64
"""Scores in a block; the blocks' maxima bound the search for the top k."""
ROUNDING = 2.0**-22
"""Share of a sum that float32 logits cannot resolve: two units in the last place."""


def draw(
    logits: np.ndarray,
    config: SamplingConfig,
    context: Sequence[int],
    generator: np.random.Generator,
) -> int:
    """The next token after `context`; takes exactly one number from the generator unless greedy."""
    ids, probabilities = distribution(logits, config, context)
    if config.temperature == 0:
        return int(ids[0])
    cumulative = np.cumsum(probabilities)
    point = generator.random() * cumulative[-1]
    return int(ids[min(np.searchsorted(cumulative, point, side="right"), ids.size - 1)])


def distribution(
    logits: np.ndarray, config: SamplingConfig, context: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that may come next and their probabilities.

    logits [V]; context: prompt and output so far. Returns ids [n], ascending, and probabilities
    [n], each > 0, of sum 1; 1 <= n <= V in every combination of settings. Among tokens that are
    equally likely the lowest id comes first, so `top_k` keeps exactly K and greedy is unambiguous.
    Raises `MlxPamError` if a logit is NaN or +inf, or none is finite.
    """
    scores = np.asarray(logits)  # [V]
    best = scores.max()  # NaN if any of them is
    if not np.isfinite(best):
        raise MlxPamError(
            f"logits must be finite, got {best} after {len(context)} tokens; the weights are "
            "damaged or their training diverged: use an earlier checkpoint"
        )
    if config.repetition_penalty > 1 and len(context) > 0:
        seen = np.unique(context[-config.repetition_window :])
        penalize = _scaled if config.repetition_rule == "multiplicative" else _lowered
        scores = scores.astype(np.float64)  # a copy
        scores[seen] = penalize(scores, seen, config.repetition_penalty)
        best = scores.max()
    if config.temperature == 0:
        return np.array([scores.argmax()]), np.ones(1)
    ids = _most_likely(scores, config.top_k)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, rightly
        likely = scores[ids].astype(np.float64)
        weights = np.exp((likely - best) / config.temperature)  # the best token's is 1
    nucleus = _most_likely(likely, _nucleus_size(weights, config.top_p))
    ids, weights = ids[nucleus], weights[nucleus]
    kept = (weights >= config.min_p) & (weights > 0)
    ids, weights = ids[kept], weights[kept]
    return ids, weights / weights.sum()


def log_probability(logits: np.ndarray, token: int) -> float:
    """The model's own log-probability of a token, before penalty, temperature and filters."""
    scores = np.asarray(logits, np.float64)
    scores = scores - scores.max()
    return float(scores[token] - np.log(np.exp(scores).sum()))


def _scaled(scores: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """The usual rule (Keskar et al. 2019, section 4.1): s / penalty where s > 0, else s * penalty.

    It depends on where the logits' zero lies, which softmax does not: a logit near 0 is hardly
    penalized, and a positive one stays above every negative one however large the penalty.
    """
    return np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)


def _lowered(scores: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """The additive rule: s - (penalty - 1) * max(best - mean score, 1) for every seen token.

    One common fall, in units of the logits' own spread, has the usual rule's strength at the usual
    values (2 to 3 nats at 1.2 for a trained model), wherever the logits' zero lies: p becomes
    p / (S + (1 - S) e^fall), S the share of all seen tokens, which is never above p, and at 1e6
    nothing while an unseen token remains.
    """
    mean = scores.mean()
    if not np.isfinite(mean):  # masked tokens have -inf
        mean = scores[np.isfinite(scores)].mean()
    return scores[seen] - (penalty - 1) * max(scores.max() - mean, 1.0)  # flat logits: at least 1


def _most_likely(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices, ascending, of the `count` highest scores (0: of all); lowest first among equals."""
    if count == 0 or count >= scores.size:
        return np.arange(scores.size)
    candidates = np.arange(scores.size)
    blocks = scores.size // BLOCK
    if count <= blocks:  # the k-th highest of their maxima is at most the k-th highest score
        maxima = scores[: BLOCK * blocks].reshape(BLOCK, blocks).max(axis=0)
        candidates = np.flatnonzero(scores >= np.partition(maxima, -count)[-count])
    likely = scores[candidates]
    least = np.partition(likely, -count)[-count]
    above = candidates[likely > least]
    equal = candidates[likely == least][: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def _nucleus_size(weights: np.ndarray, top_p: float) -> int:
    """The fewest of the heaviest weights whose sum reaches the share `top_p` of all.

    A sum that misses the share by less than float32 logits resolve has reached it: of .5, .3, .15
    and .05 it takes two to reach 0.8.
    """
    if top_p == 1:
        return weights.size
    total = weights.sum()
    # What lies below this threshold sums to less than the share that goes: no need to sort it.
    likely = weights[weights * weights.size >= (1 - top_p) * total]
    mass = np.cumsum(np.sort(likely)[::-1])
    return int(np.searchsorted(mass, top_p * total * (1 - ROUNDING))) + 1
