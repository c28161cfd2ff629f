"""Does a smooth phase help PAM? u = g / sqrt(|g|^2 + eps^2) in the gated unit, for several eps.

    python -m mlx_pam.benchmarks.phase_trial train --data FOLDER     a folder in --runs for each run
    TORCH_COMPILE_DISABLE=1 python -m mlx_pam.benchmarks.phase_trial measure
                                        rows of finished runs to results/phase_trial.jsonl
    python -m mlx_pam.benchmarks.phase_trial table                   the rows as a table

Every run trains PAM at 300k on bytes with the tuned recipe, 512 steps of 4 windows of 512 tokens in
float32. `train` and `measure` leave out what is done, so that they can be stopped and given again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlx_pam import checkpoint
from mlx_pam.benchmarks import machine, rows
from mlx_pam.benchmarks.conditioning import both_ends
from mlx_pam.config import TrainConfig, from_settings
from mlx_pam.training.loop import train
from mlx_pam.training.metrics import LOG, Record, read_log
from mlx_pam.training.plan import make_plan

RESULTS = rows.RESULTS / "phase_trial.jsonl"
EPS = (0.0, 1e-4, 0.11, 0.37)  # the authors' code; a tenth and a third of the median of |g|
RATES = (8e-3, 4e-3, 1.6e-2)
SEEDS = (0, 1)
BATCHES = 3
MEANS = ("conditioning_start", "conditioning_end", "bfloat16_start", "bfloat16_end")
Row = dict[str, Any]


def train_all(given: argparse.Namespace) -> None:
    """Train what is not yet trained; a run that was stopped begins again."""
    for lr, seed, eps in itertools.product(given.rates, given.seeds, given.eps):
        config = TrainConfig(
            scale=given.scale,
            data=given.data,
            tokenizer="bytes",
            seq_len=given.seq_len,
            batch_size=4,
            steps=given.steps,
            lr=lr,
            seed=seed,
            eval_every=given.steps,
            save_every=0,
            sample_every=0,
            backend=given.backend,
            out=given.runs / f"eps-{eps:g}-lr-{lr:g}-seed-{seed}",
            overwrite=True,
        )
        if not _finished(config.out):
            train(config, dataclasses.replace(config.model_config(), phase_eps=eps))


def measure(run: Path, log: dict[str, Record], backend: str) -> Row:
    """A finished run's loss, and how its gradient behaves on the first batches, at both ends."""
    config = from_settings(TrainConfig, log["start"]["config"] | {"backend": backend})
    trained = checkpoint.load(run)
    plan = make_plan(config, trained.config)
    return {
        "run": run.name, "eps": plan.model.phase_eps, "lr": config.lr, "seed": config.seed,
        "scale": config.scale, "tokens": log["end"]["tokens"], "loss": log["evaluation"]["loss"],
        **both_ends(plan, trained.weights, BATCHES),
        **machine.describe(),
    }  # fmt: skip


def measure_all(given: argparse.Namespace) -> None:
    """A row for each finished run that has none."""
    done = rows.read(given.out) if given.out.exists() else []
    for run in sorted(path.parent for path in given.runs.glob(f"*/{LOG}")):
        log = _finished(run)
        if log and not any(row["run"] == run.name for row in done):
            rows.add(given.out, [measure(run, log, given.backend)])


def table(measured: Sequence[Row]) -> Iterator[str]:
    """A line for each rate and eps: losses, the mean difference to eps 0, and means over seeds."""
    columns = ("rate", "ε", "loss, seed by seed", "to ε = 0", "conditioning, start", "end")
    yield f"| {' | '.join((*columns, 'bfloat16, start', 'end'))} |"
    yield "| --- " * 8 + "|"
    groups: dict[tuple[float, float], list[Row]] = {}
    for row in sorted(measured, key=lambda row: (row["lr"], row["eps"], row["seed"])):
        groups.setdefault((row["lr"], row["eps"]), []).append(row)
    for (lr, eps), group in groups.items():
        mean = {name: statistics.fmean(row[name] for row in group) for name in MEANS}
        plain = {row["seed"]: row["loss"] for row in groups.get((lr, 0.0), ())}
        shared = [row["loss"] - plain[row["seed"]] for row in group if row["seed"] in plain]
        difference = f"{statistics.fmean(shared):+.3f}" if shared else ""
        losses = ", ".join(f"{row['loss']:.3f}" for row in group)
        yield (
            f"| {lr:g} | {eps:g} | {losses} | {difference}"
            f" | {mean['conditioning_start']:,.0f} | {mean['conditioning_end']:,.0f}"
            f" | {mean['bfloat16_start']:.1%} | {mean['bfloat16_end']:.1%} |"
        )


def _finished(run: Path) -> dict[str, Record] | None:
    """The last record of each event, where the run came to its end."""
    if not (run / LOG).exists():
        return None
    events = {record["event"]: record for record in read_log(run)}
    return events if events.get("end", {}).get("status") == "finished" else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("train", "measure", "table"))
    parser.add_argument("--data", default="sample", help="corpus, as in `mlx_pam train`")
    parser.add_argument("--eps", type=float, nargs="+", default=EPS)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--scale", default="300k")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "phase-trial")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the rows")
    given = parser.parse_args(argv)
    if given.command == "train":
        train_all(given)
    elif given.command == "measure":
        measure_all(given)
    else:
        print("\n".join(table(rows.read(given.out))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
