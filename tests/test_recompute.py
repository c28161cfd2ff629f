"""Gradient checkpointing: the same losses and gradients, from less memory."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from small_run import on_cpu

from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig, recipe_for

SIZES = {"dim": 12, "num_layers": 3, "num_heads": 3, "head_dim": 8, "vocab_size": 60}
CONFIGS = {
    "pam": PAMConfig(**SIZES),
    "pam-reset": PAMConfig(**SIZES, reset_token=3),
    "sam": SAMConfig(**SIZES),
    "transformer": TransformerConfig(**SIZES),
}
RECIPE = dataclasses.replace(recipe_for("tuned", "pam", "5m"), clip_norm=0.5)


@pytest.fixture
def cpu() -> Iterator[None]:
    with on_cpu():
        yield


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_losses_gradients_and_weights_are_those_without_it(backend, config, dtype):
    batches = np.random.default_rng(0).integers(60, size=(2, 4, 34)).astype(np.int32)
    runs = []
    for recompute in (False, True):
        learner = backend.Learner(backend.build(config, seed=3), RECIPE, dtype, recompute)
        run = []
        for batch in batches:
            run += [learner.gradient(batch, 132), learner.gradient_norm()]
            learner.update(1e-2)
        run.append(learner.evaluate(batches[0], np.ones((4, 33), bool)))
        runs.append((run, learner.weights() | learner.optimizer()))
    (kept, arrays), (anew, arrays_anew) = runs
    assert anew == kept
    for name, array in arrays.items():
        assert np.array_equal(arrays_anew[name], array), name


MEASURE = """
import sys
import numpy as np
from mlx_pam.backend import get_backend
from mlx_pam.config import recipe_for, PAMConfig

backend = get_backend(sys.argv[1])
config = PAMConfig(dim=48, num_layers=12, num_heads=4, head_dim=16, vocab_size=256)
batch = np.random.default_rng(0).integers(256, size=(4, 257)).astype(np.int32)
recipe = recipe_for("tuned", "pam", "5m")
backend.Learner(backend.build(config), recipe, "float32").gradient(batch[:1, :33], 32)
peaks = [backend.peak_memory()]
for recompute in (True, False):  # the larger one last: a peak does not come down
    learner = backend.Learner(backend.build(config), recipe, "float32", recompute)
    learner.gradient(batch, 1024)
    peaks.append(backend.peak_memory())
print(*peaks)
"""


def test_the_peak_of_memory_is_less_than_half(backend):
    command = [sys.executable, "-c", MEASURE, backend.name]
    before, anew, kept = map(int, subprocess.check_output(command, text=True).split())
    assert anew - before < (kept - before) / 2
