"""`mlx_pam plot`: the curves of one run or several as a picture."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mlx_pam.analysis.curves import Curves, read_curves
from mlx_pam.analysis.runs import RunSummary, summarise
from mlx_pam.cli.arguments import parse
from mlx_pam.cli.outputs import require_output, write_output
from mlx_pam.config import require, require_choice
from mlx_pam.errors import ConfigError
from mlx_pam.training.metrics import LOG

KINDS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Draw loss, perplexity, learning rate, gradient norm, speed and memory of runs."""

    runs: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]", help_behavior_hint="")
    ] = ()
    """Run folders, one or several."""
    out: Path | None = None
    """Picture, .png, .svg or .pdf; by default plot.png, or diagnostics.png, that of a single run in
    its folder."""
    x: Literal["step", "tokens", "time"] = "step"
    """What curves go along: steps, tokens trained on, or time of training without its pauses."""
    smooth: bool = False
    """Draw running means, and the curves themselves faintly behind them."""
    diagnostics: bool = False
    """Draw what the blocks of a single run did; it must have been trained --diagnostics-every."""

    def __post_init__(self) -> None:
        require(bool(self.runs), "RUNS", "one run folder or several", "none")
        alone = not self.diagnostics or len(self.runs) == 1
        require(alone, "RUNS", "one run folder with --diagnostics", len(self.runs))
        require_choice("x", self.x, ("step", "tokens", "time"))
        if self.out is not None:
            kind = self.out.suffix.lower()
            require(kind in KINDS, "out", "a .png, .svg or .pdf file", str(self.out))


def run(argv: list[str]) -> int:
    config = parse(PlotConfig, argv, prog="mlx_pam plot", description=PlotConfig.__doc__ or "")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot needs the package matplotlib: pip install matplotlib")
    runs = _read(config.runs)

    from mlx_pam.analysis.drawing import draw_curves, save  # heavy: help does without
    from mlx_pam.analysis.layers import draw_layers

    single = next(iter(runs)) if len(runs) == 1 else None
    heading = _heading(summarise(single, single.name)) if single else ""
    curves = dict(zip(_names(list(runs)), runs.values(), strict=True))
    if config.diagnostics:
        ((name, of_run),) = curves.items()
        figure = draw_layers(name, of_run, config.x, config.smooth, heading)
    else:
        figure = draw_curves(curves, config.x, config.smooth, heading)
    kind = "diagnostics" if config.diagnostics else "plot"
    out = config.out or (single or Path()) / f"{kind}.png"
    require_output("out", out, make_folder=True)
    write_output("out", out, lambda file: save(figure, file, out.suffix))
    print(out)
    return 0


def _read(paths: Sequence[Path]) -> dict[Path, Curves]:
    """The curves of the runs that have any; of the others is said why they are left out."""
    found, reasons = {}, []
    for path in {path.resolve(): path for path in paths}.values():
        try:
            curves = read_curves(path)
        except OSError as error:
            reasons.append(f"{path}, whose {LOG} cannot be read ({error.strerror})")
            continue
        if len(curves.column("step", "step")):
            found[path] = curves
        else:
            reasons.append(f"{path}, which has no step yet")
    if not found:
        raise ConfigError(f"RUNS must be folders of runs with steps, got {'; '.join(reasons)}")
    for reason in reasons:
        print(f"note: {reason}, is left out", file=sys.stderr)
    return found


def _names(paths: Sequence[Path]) -> list[str]:
    """The ends of the paths, as short as tells them apart."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*part[-depth:])) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _heading(run: RunSummary) -> str:
    """What a run is and how far it has come, in a line."""
    facts = [
        " ".join(word for word in (run.model, run.scale) if word),
        f"{run.parameters:,} parameters" if run.parameters else "",
        textwrap.shorten(run.data or "", 40, placeholder=" …"),
        f"step {run.step:,} of {run.steps:,}" if run.step is not None and run.steps else "",
        f"best validation perplexity {run.best_validation_perplexity:,.2f}"
        if run.best_validation_perplexity
        else "",
        run.state,
    ]
    return "  ·  ".join(fact for fact in facts if fact)
