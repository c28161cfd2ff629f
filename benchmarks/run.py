"""Measure cases by name; a line per row is added to `results/CASE.jsonl`.

python -m mlx_pam.benchmarks.run --list
python -m mlx_pam.benchmarks.run train --scale 5m --rounds 7
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from mlx_pam.benchmarks import machine, report, rows, summary
from mlx_pam.benchmarks.cases import CASES, Case, Setting
from mlx_pam.benchmarks.rounds import run_rounds

DEFAULT = ["quick"]
NARROW = ("scale", "batch_size", "seq_len")
"""Settings that the command line can replace."""


def main() -> None:
    options = arguments().parse_args()
    console = Console()
    if options.list:
        list_cases(console)
        return
    for name in options.cases or DEFAULT:
        case = narrowed(CASES[name], options.variants)
        for setting in replaced(case.settings, options):
            row = measure(name, case, setting, options, console)
            report.show(row, console)
            rows.add(options.out / f"{name}.jsonl", [row])


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; by default quick")
    add("--list", action="store_true", help="the cases, and how long each takes on two cores")
    add("--rounds", type=int, help="turns of each variant; by default the case's own")
    add("--seconds", type=float, default=2.0, help="least length of a turn")
    add("--threads", type=int, help="by default all cores, or what the case says")
    add("--scale", help="measure this scale alone")
    add("--batch-size", type=int, help="windows in a step, in place of the case's")
    add("--seq-len", type=int, help="tokens in a window, in place of the case's")
    add("--variants", nargs="+", metavar="WORD", help="only those whose name has one of the words")
    add("--out", type=Path, default=rows.RESULTS, help="folder of the results")
    add("--debug", action="store_true", help="show what the variants' processes print")
    return parser


def list_cases(console: Console) -> None:
    for name, case in CASES.items():
        minutes = sum(case.minutes)
        console.print(
            f"[bold]{name}[/]  about {minutes:g} min, {case.rounds} rounds: {case.question}"
        )
        for setting, each in zip(case.settings, case.minutes, strict=True):
            values = ", ".join(f"{key} {value}" for key, value in setting.items())
            console.print(f"    {values}: {each:g} min", highlight=False)


def narrowed(case: Case, words: list[str] | None) -> Case:
    """The case with only the variants whose name has one of the words."""
    if not words:
        return case
    kept = {n: v for n, v in case.variants.items() if any(word in n for word in words)}
    return dataclasses.replace(case, variants=kept)


def replaced(settings: tuple[Setting, ...], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The case's settings with those of the command line, each once.

    A scale that the case has selects its settings; another replaces theirs.
    """
    own = {name: value for name in NARROW if (value := getattr(options, name, None)) is not None}
    selected = [s for s in settings if s["scale"] == own.get("scale")] or settings
    found: list[dict[str, Any]] = []
    for setting in selected:
        row = {**setting, **{name: value for name, value in own.items() if name in setting}}
        row["threads"] = options.threads or setting.get("threads") or machine.cores()
        if row not in found:
            found.append(row)
    return found


def measure(
    name: str, case: Case, setting: Setting, options: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """One row: every variant of the case under one setting."""
    rounds = options.rounds or case.rounds
    about = machine.describe()
    jobs = {variant: given.job(setting) for variant, given in case.variants.items()}
    start = time.monotonic()
    with report.telling(name, console) as tell:
        outcomes = run_rounds(
            jobs,
            rounds=rounds,
            threads=setting["threads"],
            seconds=options.seconds,
            tell=tell,
            log=None if options.debug else subprocess.DEVNULL,
        )
    measured = summary.variants(outcomes)
    summary.add_shares(measured)
    return {
        "case": name,
        **about,
        "setting": dict(setting),
        "rounds": rounds,
        "turn_seconds": options.seconds,
        "wall_seconds": time.monotonic() - start,
        "variants": measured,
        "ratios": summary.ratios(measured, case.pairs),
    }


if __name__ == "__main__":
    main()
