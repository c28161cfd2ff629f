"""The model of memory is near the peaks that were measured, and its table says what fits."""

from __future__ import annotations

from mlx_pam import footprint as model
from mlx_pam.benchmarks import footprint, rows
from mlx_pam.config import TrainConfig


def test_estimates_are_within_fifteen_percent_of_every_measured_peak():
    measured = rows.read(rows.OWN / "memory.jsonl")
    assert {row["point"]["backend"] for row in measured} == {"mlx", "torch"}
    assert any(row["point"].get("gradient_checkpointing") for row in measured)
    assert any(row["point"].get("dtype") == "bfloat16" for row in measured)
    for row in measured:
        error = footprint.estimate(row) / row["peak_bytes"] - 1
        assert abs(error) <= 0.15, (row["point"], error)


def test_a_cell_of_the_table_is_the_largest_batch_that_fits():
    line = next(text for text in footprint.table().splitlines() if "`100m`, float32" in text)
    without, anew = line.split("|")[3].strip(" )").replace(",", "").split(" (")  # 16 GB
    room = 16 * 2**30 * 2 / 3 - footprint.OVERHEAD
    for size, checkpointing in ((int(without), False), (int(anew), True)):
        totals = []
        for batch_size in (size, size + 1):
            config = TrainConfig(
                scale="100m", batch_size=batch_size, gradient_checkpointing=checkpointing
            )
            found = model.estimate(config.model_config(), config, "mlx", "metal")
            totals.append(found.total)
        assert totals[0] <= room < totals[1]
