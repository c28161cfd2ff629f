"""A study that was run with `mlx_pam sweep`: its logs, made small enough to keep, and its tables.

    python -m mlx_pam.benchmarks.study keep DIR NAME     logs of DIR go to results/studies/NAME
    python -m mlx_pam.benchmarks.study tables            the tables of docs/study.md

What is kept are ordinary run folders without checkpoints, and of their steps the first, every 32nd
and the last: `mlx_pam scaling benchmarks/results/studies/NAME` and `mlx_pam plot` read them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from mlx_pam.benchmarks import rows
from mlx_pam.config import Scale, model_config
from mlx_pam.parameters import parameter_table
from mlx_pam.training.metrics import LOG, Record, read_log, to_json

STUDIES = rows.RESULTS / "studies"
EVERY = 32
RECORDS = ("sweep.json", "learning_rates.json")


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    model: str
    scale: str
    seed: int
    body: int
    """Parameters without the embedding."""
    rate: float
    loss: float
    """On the validation split at the end, nats a token."""
    seconds: float


def keep(study: Path, out: Path) -> list[Path]:
    """Copy the records of a sweep, which tell its search too, and the thinned logs of its runs."""
    kept = []
    for log in sorted(study.glob(f"*/{LOG}")):
        records = read_log(log.parent)
        ends = 1, max(record["step"] for record in records if record["event"] == "step")
        lines = [
            record
            for record in records
            if record["event"] != "step" or record["step"] in ends or record["step"] % EVERY == 0
        ]
        kept.append(out / log.relative_to(study))
        kept[-1].parent.mkdir(parents=True, exist_ok=True)
        kept[-1].write_text("".join(to_json(line) + "\n" for line in lines), "utf-8")
    for name in RECORDS:
        if (study / name).exists():
            kept.append(out / name)
            kept[-1].write_bytes((study / name).read_bytes())
    return kept


def outcomes(study: Path) -> list[Outcome]:
    """The finished runs that lie directly in a folder."""
    found = []
    for log in sorted(study.glob(f"*/{LOG}")):
        events = {record["event"]: record for record in read_log(log.parent)}
        if "end" in events and events["end"].get("status") == "finished":
            found.append(_outcome(events))
    return found


def _outcome(events: dict[str, Record]) -> Outcome:
    config, plan = events["start"]["config"], events["start"]["plan"]
    table = parameter_table(model_config(plan["model"]))
    return Outcome(
        model=" ".join(filter(None, (config["model"], config["variant"]))),
        scale=config["scale"],
        seed=config["seed"],
        body=sum(p.size for p in table.values() if p.kind != "embedding"),
        rate=plan["recipe"]["peak_lr"],
        loss=events["evaluation"]["loss"],
        seconds=events["step"]["elapsed"],
    )


def table(runs: Sequence[Outcome], beside: str) -> Iterator[str]:
    """A line for each model, scale and rate, smallest scale first, the best of a scale first.

    The loss of a byte in nats is bits a byte once divided by ln 2. In the last column the loss of
    the model `beside` at the same scale is subtracted.
    """
    columns = ("scale", "model", "parameters", "rate", "loss, seed by seed", "bits a byte")
    yield f"| {' | '.join(columns)} | to `{beside}` |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    groups: dict[tuple[str, str, float], list[Outcome]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault((run.scale, run.model, run.rate), []).append(run)
    means = {key: statistics.fmean(run.loss for run in group) for key, group in groups.items()}
    for scale in (scale for scale in get_args(Scale) if any(run.scale == scale for run in runs)):
        (base,) = (mean for key, mean in means.items() if key[:2] == (scale, beside))
        for key in sorted((key for key in groups if key[0] == scale), key=means.__getitem__):
            first, losses = groups[key][0], ", ".join(f"{run.loss:.3f}" for run in groups[key])
            yield (
                f"| `{scale}` | `{first.model}` | {first.body:,} | {first.rate:g} | {losses} | "
                f"{means[key] / math.log(2):.3f} | {means[key] - base:+.3f} |"
            )


def tables() -> Iterator[str]:
    """The tables of docs/study.md, from what is kept."""
    families, ablations = outcomes(STUDIES / "wikipedia"), outcomes(STUDIES / "ablations")
    yield from table(families, "pam")
    yield ""
    yield from table(ablations, "pam")
    yield ""
    runs = families + ablations
    yield f"{sum(run.seconds for run in runs) / 3600:.1f} hours of training in {len(runs)} runs"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="copy the logs of a sweep, thinned")
    keeping.add_argument("study", type=Path, help="folder of the sweep")
    keeping.add_argument("name", help=f"of its folder in {STUDIES.name}")
    commands.add_parser("tables", help="print the tables of what is kept")
    given = parser.parse_args(argv)
    if given.command == "keep":
        print(f"{len(keep(given.study, STUDIES / given.name))} files in {STUDIES / given.name}")
    else:
        print("\n".join(tables()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
