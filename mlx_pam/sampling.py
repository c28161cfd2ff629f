"""Draws the next token from a model's logits; written once, in NumPy, for every backend.

The order is repetition penalty, temperature, top-k, top-p, min-p, draw. (mlx-lm's `make_sampler`
applies the temperature after top-p and min-p, and refuses a top-k of the whole vocabulary, so it is
not used; its repetition penalty is discussed at `_penalised`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlx_pam.config import require_count, require_range
from mlx_pam.errors import MlxPamError


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a token is chosen from logits; the settings apply in the order in which they stand."""

    repetition_penalty: float = 1.0
    """Makes tokens of the window less likely: 1 leaves them, 1.2 ends most loops, 1e6 forbids."""
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
        require_count("repetition_window", self.repetition_window, least=0)
        require_range("temperature", self.temperature, 0.0, 100.0)
        require_count("top_k", self.top_k, least=0)
        require_range("top_p", self.top_p, 0.0, 1.0)
        require_range("min_p", self.min_p, 0.0, 1.0)


PAPER_SAMPLING = SamplingConfig(temperature=1.0, top_k=50, top_p=0.9, repetition_penalty=1.2)
"""What the paper draws the samples of its training runs with."""


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
    scores = np.asarray(logits, np.float64)  # [V]
    best = scores.max()  # NaN if any of them is
    if not np.isfinite(best):
        raise MlxPamError(
            f"logits must be finite, got {best} after {len(context)} tokens; the weights are "
            "damaged or their training diverged: use an earlier checkpoint"
        )
    if config.repetition_penalty > 1 and len(context) > 0:
        scores = _penalised(scores, config.repetition_penalty, context[-config.repetition_window :])
        best = scores.max()
    if config.temperature == 0:
        return np.array([scores.argmax()]), np.ones(1)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, rightly
        scores = (scores - best) / config.temperature
    ids = _most_likely(scores, config.top_k)
    weights = np.exp(scores[ids])  # relative to the best token, which has weight 1
    nucleus = _most_likely(weights, _nucleus_size(weights, config.top_p))
    ids, weights = ids[nucleus], weights[nucleus]
    kept = (weights >= config.min_p) & (weights > 0)
    ids, weights = ids[kept], weights[kept]
    return ids, weights / weights.sum()


def log_probability(logits: np.ndarray, token: int) -> float:
    """The model's own log-probability of a token, before penalty, temperature and filters."""
    scores = np.asarray(logits, np.float64)
    scores = scores - scores.max()
    return float(scores[token] - np.log(np.exp(scores).sum()))


def _penalised(scores: np.ndarray, penalty: float, seen: Sequence[int]) -> np.ndarray:
    """Scores in which every seen token has fallen by (penalty - 1) * (best score - mean score).

    The usual rule divides positive logits by the penalty and multiplies negative ones. It depends
    on where the logits' zero lies, which softmax does not: a logit near 0 is hardly penalised
    however large the penalty, 1e6 leaves a positive one above every negative one, and where several
    tokens are penalised unequally the least penalised gains. One common fall, in units of the
    logits' own spread, has the rule's strength at the usual values (2 to 3 nats at 1.2 for a
    trained model) and none of that: p becomes p / (S + (1 - S) e^fall), S the share of all seen
    tokens, which is never above p, and at 1e6 nothing while an unseen token remains.
    """
    spread = scores.max() - scores[np.isfinite(scores)].mean()
    scores = scores.copy()
    scores[np.unique(seen)] -= (penalty - 1) * max(spread, 1.0)  # 1: flat logits have no spread
    return scores


def _most_likely(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices, ascending, of the `count` highest scores (0: of all); lowest first among equals."""
    if count == 0 or count >= scores.size:
        return np.arange(scores.size)
    least = np.partition(scores, -count)[-count]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def _nucleus_size(weights: np.ndarray, top_p: float) -> int:
    """How many of the heaviest weights it takes to reach the share `top_p` of all."""
    if top_p == 1:
        return weights.size
    total = weights.sum()
    # What lies below this threshold sums to less than the share that goes: no need to sort it.
    likely = weights[weights * weights.size >= (1 - top_p) * total]
    mass = np.cumsum(np.sort(likely)[::-1])
    return int(np.searchsorted(mass, top_p * total)) + 1
