"""`mlx_pam evaluate`: loss, perplexity and bits per byte of a checkpoint, with the protocol."""

from __future__ import annotations

import sys

from mlx_pam.cli.arguments import parse
from mlx_pam.evaluate import EvaluateConfig
from mlx_pam.training.metrics import to_json


def run(argv: list[str]) -> int:
    config = parse(
        EvaluateConfig, argv, prog="mlx_pam evaluate", description=EvaluateConfig.__doc__
    )

    from mlx_pam.data.corpus import load_corpus  # heavy: help does without
    from mlx_pam.evaluate import evaluate
    from mlx_pam.language_model import load

    model = load(config.checkpoint, backend=config.backend)
    corpus = load_corpus(config.data, model.tokenizer)
    result = evaluate(
        model,
        corpus,
        config.split,
        seq_len=config.seq_len,
        batch_size=config.batch_size,
        dtype=config.dtype,
        progress=_progress,
    )
    print(to_json(result.to_dict()) if config.json else result.describe())
    return 0


def _progress(done: int, count: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == count else ""
        print(f"\r{done:,} of {count:,} tokens", end=end, file=sys.stderr, flush=True)
