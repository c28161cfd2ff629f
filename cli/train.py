"""`mlx_pam train`: train a model, or go on with a run."""

from __future__ import annotations

from mlx_pam import processes
from mlx_pam.cli import EXIT_INTERRUPT
from mlx_pam.cli.arguments import parse
from mlx_pam.config import VARIANTS, TrainConfig
from mlx_pam.training.metrics import to_json

ONCE = {
    "--variant": "variants are not combined; from Python, `mlx_pam.train(config, model_config)` "
    "trains any model",
}


def run(argv: list[str]) -> int:
    config = parse(TrainConfig, argv, prog="mlx_pam train", description=_description(), once=ONCE)

    from mlx_pam.backend import get_backend  # heavy: help does without
    from mlx_pam.training.loop import train

    result = train(config)
    get_backend(config.backend, config.parallel).team.leave()
    if not processes.is_main():
        return 0  # the main process answers for all
    if config.json:
        print(to_json(result.to_dict()))
    return EXIT_INTERRUPT if result.status == "interrupted" else 0


def _description() -> str:
    width = max(map(len, VARIANTS))
    lines = (f"  {name:<{width}}  {change.help}" for name, change in VARIANTS.items())
    return "\n".join([TrainConfig.__doc__, "", "--variant, of pam and sam:", *lines])
