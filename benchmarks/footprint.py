"""The model of training's memory, `mlx_pam.footprint`: held against measured peaks, and as a table.

python -m mlx_pam.benchmarks.footprint measure    rows go to results/memory.jsonl
python -m mlx_pam.benchmarks.footprint table      the batches that fit Macs of several sizes
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_pam import footprint
from mlx_pam.backend import get_backend
from mlx_pam.benchmarks import machine, memory, rows
from mlx_pam.config import TrainConfig, recipe_for

POINTS: list[dict[str, Any]] = [
    {"backend": backend, "seq_len": 256} | settings
    for backend in ("mlx", "torch")
    for settings in (
        {"scale": "5m", "batch_size": 2},
        {"scale": "5m", "batch_size": 8},
        {"scale": "5m", "batch_size": 8, "gradient_checkpointing": True},
        {"scale": "5m", "batch_size": 4, "seq_len": 512},
        {"scale": "5m", "batch_size": 4, "accumulate": 2},
        {"scale": "5m", "batch_size": 4, "dtype": "bfloat16"},
        {"scale": "25m", "batch_size": 4},
        {"scale": "25m", "batch_size": 4, "gradient_checkpointing": True},
        {"scale": "5m", "batch_size": 4, "model": "sam"},
        {"scale": "5m", "batch_size": 4, "model": "transformer"},
    )
]
# A Mac's memory in GiB, and the share of it that macOS lets a GPU keep resident
MACS = {8: 2 / 3, 16: 2 / 3, 36: 3 / 4, 128: 3 / 4}
SCALES = ("5m", "25m", "50m", "100m")
OVERHEAD = 1_000_000_000  # Python, libraries and what the allocator rounds up


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("measure", "compare", "table", "point"))
    parser.add_argument("settings", nargs="?", help="of one point, as JSON")
    parser.add_argument("--backend", choices=("mlx", "torch"), help="points of this one alone")
    parser.add_argument("--out", type=Path, default=rows.RESULTS / "memory.jsonl")
    given = parser.parse_args(argv)
    if given.command == "point":
        print(json.dumps(point(json.loads(given.settings))))
    elif given.command == "measure":
        measure([p for p in POINTS if given.backend in (None, p["backend"])], given.out)
    elif given.command == "compare":
        print("\n".join(compare(rows.read(given.out))))
    else:
        print(table(), end="")
    return 0


def point(settings: dict[str, Any]) -> dict[str, Any]:
    """The peak of one training step in this process, once everything is compiled."""
    config = TrainConfig(**settings)
    backend, model = get_backend(config.backend), config.model_config()
    recipe = recipe_for("tuned", config.model, config.scale)
    learner = backend.Learner(
        backend.build(model), recipe, config.dtype, config.gradient_checkpointing
    )
    shape = (config.batch_size, config.seq_len + 1)
    batch = np.random.default_rng(0).integers(0, model.vocab_size, shape, np.int32)
    for step in range(3):
        if step == 2:
            memory.give_back()
            memory.forget_peak()
        for _ in range(config.accumulate):
            learner.gradient(batch, config.tokens_per_step)
        learner.update(1e-4)
    peak = memory.peak_bytes() if backend.device == "cpu" else backend.peak_memory()
    return {"point": settings, "device": backend.device, "peak_bytes": peak}


def measure(points: list[dict[str, Any]], out: Path) -> None:
    """Each point in a process of its own, printed and kept."""
    about = machine.describe()
    for settings in points:
        command = [sys.executable, "-m", __spec__.name, "point", json.dumps(settings)]
        row = json.loads(subprocess.check_output(command, text=True))
        rows.add(out, [row | about])
        print(*compare([row]), sep="\n", flush=True)


def compare(measured: list[dict[str, Any]]) -> list[str]:
    """A line for each row: what was measured, what is estimated, and by how much that is off."""
    lines = []
    for row in measured:
        peak, settings = row["peak_bytes"], " ".join(f"{k}={v}" for k, v in row["point"].items())
        estimated = estimate(row)
        figures = f"{peak / 1e9:.2f} GB measured, {estimated / 1e9:.2f} GB estimated"
        lines.append(f"{figures}, {estimated / peak - 1:+4.0%}: {settings}")
    return lines


def estimate(row: dict[str, Any]) -> int:
    """Bytes that the model gives for the point of a row."""
    config = TrainConfig(**row["point"])
    found = footprint.estimate(config.model_config(), config, config.backend, row["device"])
    return found.total


def table() -> str:
    """Largest micro-batches, windows of 512 tokens, PAM in MLX on Metal, by the model alone."""
    head = [f"{size} GB" for size in MACS]
    lines = ["| scale, type | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(MACS)]
    for scale in SCALES:
        for dtype in ("float32", "bfloat16"):
            cells = [_cell(scale, dtype, size, share) for size, share in MACS.items()]
            lines.append(f"| `{scale}`, {dtype} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(scale: str, dtype: str, size: int, share: float) -> str:
    room = round(size * 2**30 * share) - OVERHEAD
    found = []
    for checkpointing in (False, True):
        config = TrainConfig(scale=scale, dtype=dtype, gradient_checkpointing=checkpointing)
        largest = footprint.largest_batch(config.model_config(), config, "mlx", "metal", room)
        found.append(f"{largest:,}" if largest else "none")
    return f"{found[0]} ({found[1]})"


if __name__ == "__main__":
    sys.exit(main())
