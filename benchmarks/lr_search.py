"""Search the peak learning rate of a scale: one short run per rate, the whole schedule in each.

    python -m mlx_pam.benchmarks.lr_search --scale 5m --rates 1e-3 2e-3 4e-3 --steps 200

Each run is `mlx_pam train` with the tuned recipe on `sample` and one rate; a line per run goes to
`benchmarks/results/lr_search.jsonl`. The best rate of a longer run tends to be lower.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from mlx_pam.benchmarks import rows
from mlx_pam.config import TrainConfig
from mlx_pam.training.loop import train

RESULTS = rows.RESULTS / "lr_search.jsonl"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="pam")
    options.add_argument("--scale", default="5m")
    options.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3, 8e-3])
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seq-len", type=int, default=256)
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--seed", type=int, default=0)
    settings = vars(options.parse_args())
    for rate in settings.pop("rates"):
        with tempfile.TemporaryDirectory() as folder:
            config = TrainConfig(
                **settings,
                lr=rate,
                out=Path(folder) / "run",
                eval_every=settings["steps"],
                save_every=0,
                sample_every=0,
            )
            result = train(config)
        row = {**settings, "lr": rate, "tokens": result.tokens, "data": config.data}
        row["validation_loss"] = result.validation_loss
        rows.add(RESULTS, [row])


if __name__ == "__main__":
    main()
