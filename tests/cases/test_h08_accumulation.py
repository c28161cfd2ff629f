"""H08: accumulation trades memory for time and changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from small_run import run

from mlx_pam import checkpoint
from mlx_pam.training.metrics import read_log


def test_batch_8_x_1_equals_batch_2_x_4(backend, corpus, tmp_path):
    whole = run(corpus, tmp_path / "whole", steps=5, batch_size=8, backend=backend.name)
    parts = run(
        corpus, tmp_path / "parts", steps=5, batch_size=2, accumulate=4, backend=backend.name
    )
    assert whole.tokens == parts.tokens == 5 * 8 * 8
    for one, other in zip(*(read_log(r.out, "step") for r in (whole, parts)), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        assert (other["tokens"], other["lr"]) == (one["tokens"], one["lr"])
    expected, found = (checkpoint.load(r.checkpoint).weights for r in (whole, parts))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
