"""What is kept of a study is a study, and its page says what that says."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
from written_log import end, evaluation, start, steps, write_log

from mlx_pam.analysis.scaling.points import read_points
from mlx_pam.benchmarks import study
from mlx_pam.config import PRESETS, variant
from mlx_pam.training.metrics import read_log

PAGE = Path(__file__).parents[2] / "docs" / "study.md"


def write_run(
    folder: Path, name: str, loss: float, seed: int = 0, changed: str | None = None,
    rate: float = 4e-3, status: str = "finished",
) -> None:  # fmt: skip
    model = PRESETS[name]["300k"]
    config = {"model": name, "variant": changed, "scale": "300k", "seed": seed}
    plan = {
        "model": (variant(model, changed) if changed else model).to_dict(),
        "steps": 70,
        "recipe": {"peak_lr": rate},
    }
    write_log(
        folder / f"{name}-{changed}-{seed}",
        start(config=config, plan=plan),
        *steps(1, 35),
        evaluation(35, 9.0),
        *steps(36, 70),
        evaluation(70, loss),
        end(70, status),
    )


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    write_run(folder, "pam", 1.5)
    write_run(folder, "pam", 1.6, seed=1)
    write_run(folder, "sam", 1.0, rate=2e-3)
    write_run(folder, "pam", 1.75, changed="no-gate")
    write_run(folder, "transformer", 0.1, status="interrupted")
    (folder / "sweep.json").write_text("{}")
    return folder


def test_logs_are_kept_thinned_and_whole_otherwise(sweep, tmp_path):
    kept = study.keep(sweep, tmp_path / "kept")
    assert len(kept) == 6
    assert (tmp_path / "kept" / "sweep.json").read_text() == "{}"
    for run in (path.parent for path in kept[:5]):
        before, after = read_log(sweep / run.name), read_log(run)
        assert [r["step"] for r in after if r["event"] == "step"] == [1, 32, 64, 70]
        assert [r for r in after if r["event"] != "step"] == [
            r for r in before if r["event"] != "step"
        ]


def test_what_is_kept_has_the_outcomes_of_the_whole(sweep, tmp_path):
    study.keep(sweep, tmp_path / "kept")
    assert study.outcomes(tmp_path / "kept") == study.outcomes(sweep)
    points, left_out = read_points(tmp_path / "kept", 0.2)
    assert len(points) == 4
    assert left_out == {"transformer-None-0": "interrupted"}


def test_a_table_has_the_best_model_first_and_differences(sweep):
    assert list(study.table(study.outcomes(sweep), "pam"))[2:] == [
        "| `300k` | `sam` | 306,363 | 0.002 | 1.000 | 1.443 | -0.550 |",
        "| `300k` | `pam` | 303,100 | 0.004 | 1.500, 1.600 | 2.236 | +0.000 |",
        "| `300k` | `pam no-gate` | 302,116 | 0.004 | 1.750 | 2.525 | +0.200 |",
    ]


def test_the_page_has_the_tables_of_what_is_kept():
    lines = PAGE.read_text("utf-8").splitlines()
    assert [line for line in study.tables() if line not in lines] == []


def test_the_readme_has_the_mean_losses():
    readme = (PAGE.parents[1] / "README.md").read_text("utf-8")
    runs = study.outcomes(study.STUDIES / "wikipedia")
    for model, name in (("pam", "PAM"), ("sam-matched", "SAM, "), ("transformer", "transformer")):
        means = [
            statistics.fmean(run.loss for run in runs if (run.model, run.scale) == (model, scale))
            for scale in ("300k", "1m", "3m")
        ]
        cells = " | ".join(f"{mean:.3f}" for mean in means)
        assert re.search(rf"^\| {name}.* \| {re.escape(cells)} \|$", readme, re.M), cells
