"""`mlx_pam scaling`: how loss falls with the size of models, and where families meet."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mlx_pam.analysis.scaling.points import read_points
from mlx_pam.analysis.scaling.published import published_points
from mlx_pam.analysis.scaling.record import to_json
from mlx_pam.analysis.scaling.study import Study, study
from mlx_pam.analysis.scaling.words import sentences
from mlx_pam.cli.arguments import parse
from mlx_pam.cli.outputs import require_output, write_output
from mlx_pam.cli.plot import KINDS
from mlx_pam.cli.scaling_tables import print_tables
from mlx_pam.config import require, require_count, require_range
from mlx_pam.errors import ConfigError

PUBLISHED = "published means"


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """Fit how loss and perplexity fall with size, family by family, and say what that is worth."""

    folder: Annotated[Positional[Path | None], arg(metavar="[DIR]", help_behavior_hint="")] = None
    """Folder that holds run folders; those of finished runs are read, and none deeper in it."""
    published: bool = False
    """In place of runs, take the means that the paper publishes of its sweep."""
    window: float = 0.2
    """Share of a run, its end, over which losses are averaged."""
    resamples: int = 10_000
    """Samples of the runs that intervals are read from."""
    seed: int = 0
    """Decides the samples."""
    out: Path | None = None
    """Picture, .png, .svg or .pdf; NAME-curves beside it shows the losses of runs by tokens."""
    json: bool = False
    """Print all of it as one JSON object."""

    def __post_init__(self) -> None:
        given = "both" if self.published and self.folder else "none"
        either = (self.folder is None) == self.published
        require(either, "DIR", "a folder of runs, or else --published", given)
        if self.folder is not None:
            require(self.folder.is_dir(), "DIR", "a folder that exists", str(self.folder))
        require_range("window", self.window, 0.0, 1.0, open_least=True)
        require_count("resamples", self.resamples, least=100, most=10**6)
        require_count("seed", self.seed, least=0)
        if self.out is not None:
            require(
                self.out.suffix.lower() in KINDS, "out", "a .png, .svg or .pdf file", str(self.out)
            )


def run(argv: list[str]) -> int:
    description = inspect.getdoc(ScalingConfig) or ""
    config = parse(ScalingConfig, argv, prog="mlx_pam scaling", description=description)
    if config.out is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--out needs the package matplotlib: pip install matplotlib")
    found = _study(config)
    said = sentences(found)
    if config.json:
        settings = {"window": config.window, "resamples": config.resamples, "seed": config.seed}
        print(to_json(found, said, **settings))
    else:
        print_tables(found, said)
    if config.out is not None:
        for path in _draw(found, config.out):
            print(path, file=sys.stderr if config.json else sys.stdout)
    return 0


def _study(config: ScalingConfig) -> Study:
    if config.folder is None:
        points, left_out = published_points(), {}
    else:
        points, left_out = read_points(config.folder, config.window)
    for name, reason in left_out.items():
        print(f"note: {name} is left out: {reason}", file=sys.stderr)
    if not points:
        raise ConfigError(
            f"DIR must be a folder with finished runs directly in it, got {config.folder}: "
            "`mlx_pam sweep` makes them, or `mlx_pam train --out DIR/NAME`"
        )
    source = str(config.folder or PUBLISHED)
    return study(points, source, left_out, config.resamples, config.seed)


def _draw(found: Study, out: Path) -> list[Path]:
    """Write the pictures; the curves only where there are any."""
    from mlx_pam.analysis.drawing import save  # heavy: the rest does without
    from mlx_pam.analysis.scaling.curves import draw_convergence
    from mlx_pam.analysis.scaling.drawing import draw_scaling

    figures = {out: draw_scaling(found)}
    if any(point.curve for point in found.points):
        figures[out.with_stem(f"{out.stem}-curves")] = draw_convergence(found)
    for path, figure in figures.items():
        require_output("out", path, make_folder=True)
        write_output("out", path, partial(save, figure, suffix=path.suffix))
    return list(figures)
