"""Memory over a thousand steps, with evaluations, samples and checkpoints between: it stays flat.

    python -m mlx_pam.benchmarks.flat        rows go to results/flat.jsonl

`docs/pictures.py flat_memory` draws them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from mlx_pam.benchmarks import machine, memory, rows
from mlx_pam.config import ModelConfig, PAMConfig, TrainConfig
from mlx_pam.training.loop import train
from mlx_pam.training.metrics import StepRecord
from mlx_pam.training.trainer import Trainer

STEPS = 1000
SMALL = PAMConfig(dim=16, num_layers=4, num_heads=2, head_dim=16)
EVENTS = {"eval_every": 100, "save_every": 100, "sample_every": 250, "sample_tokens": 20}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("mlx", "torch"), help="this one alone, here")
    parser.add_argument("--data", default="sample")
    parser.add_argument("--out", type=Path, default=rows.RESULTS / "flat.jsonl")
    given = parser.parse_args(argv)
    if given.backend is None:  # a process for each: neither counts what the other left behind
        command = [sys.executable, "-m", __spec__.name, "--data", given.data, "--out", given.out]
        for backend in ("mlx", "torch"):
            subprocess.run([*command, "--backend", backend], check=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            backend=given.backend, data=given.data, out=Path(folder) / "run", steps=STEPS,
            seq_len=32, batch_size=4, json=True, **EVENTS,
        )  # fmt: skip
        row = {"backend": given.backend, "events": EVENTS} | curve(config, SMALL)
    rows.add(given.out, [row | machine.describe()])
    print(json.dumps({name: row[name][:: STEPS // 10] for name in ("resident", "peak")}))
    return 0


def curve(config: TrainConfig, model: ModelConfig | None = None) -> dict[str, Any]:
    """Bytes held after each step of a run, and the most held until then."""
    step, resident, peak = Trainer.train_step, [], []

    def watched(trainer: Trainer) -> StepRecord:
        record = step(trainer)
        resident.append(memory.resident_bytes())
        peak.append(record.peak_memory)
        return record

    with mock.patch.object(Trainer, "train_step", watched):
        train(config, model)
    return {"resident": resident, "peak": peak}


if __name__ == "__main__":
    sys.exit(main())
