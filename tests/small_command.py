"""`python small_command.py train ...` is `mlx_pam train ...` with a model that trains at once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from small_run import TINY

from mlx_pam import blas, cli
from mlx_pam.config import PRESETS
from mlx_pam.training.trainer import Trainer

blas.preload()  # before anything imports mlx
import mlx.core as mx  # noqa: E402

HOLD = "MLX_PAM_TEST_HOLD"
"""The variable that names a file: while it exists, no step begins but the first."""


def main() -> int:
    """The command with `TINY` as the smallest preset, on the CPU, without `torch.compile`."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    mx.set_default_device(mx.cpu)  # where a run is the same to the bit
    PRESETS["pam"]["5m"] = TINY
    if HOLD in os.environ:
        _hold(Path(os.environ[HOLD]))
    return cli.main()


def _hold(file: Path) -> None:
    step = Trainer.train_step

    def held_step(trainer: Trainer) -> object:
        while trainer.step and file.exists():
            time.sleep(0.01)
        return step(trainer)

    pytest.MonkeyPatch().setattr(Trainer, "train_step", held_step)


if __name__ == "__main__":
    sys.exit(main())
