"""Draw the pictures of the documentation anew: `python docs/pictures.py [NAME ...]`.

Needs mlx_pam and matplotlib (`pip install "mlx_pam[analysis]"`). Where numbers are shown they are
computed here, by the package's own code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import drawings
import memory_plots
import plots
import scaling_plots
import study_plots
from style import save

FOLDER = Path(__file__).with_name("pictures")
PICTURES = {
    f.__name__: f
    for f in (
        drawings.write_and_read,
        drawings.interference,
        plots.decay_matrix,
        drawings.chunks,
        drawings.flow,
        plots.cost,
        plots.state_and_cache,
        plots.numerics,
        memory_plots.flat_memory,
        scaling_plots.scaling_published,
        study_plots.study_scaling,
        study_plots.study_convergence,
        study_plots.study_ablations,
        study_plots.study_recall,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        save(PICTURES[name](), options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
