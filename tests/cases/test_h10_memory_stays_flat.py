"""H10: memory at step 300 is memory at step 50, whatever is evaluated and saved in between."""

from __future__ import annotations

import os
import subprocess

import pytest
from small_run import TINY, eager, run, small

from mlx_pam.benchmarks import flat, memory
from mlx_pam.training.metrics import read_log
from mlx_pam.training.trainer import Trainer


def resident() -> int:
    """Bytes of memory that this process holds now."""
    words = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return 1024 * int(subprocess.run(words, capture_output=True, check=True).stdout)


def test_peak_and_resident_memory_do_not_grow(backend, corpus, tmp_path, monkeypatch):
    held = []
    step = Trainer.train_step

    def watched(self):
        record = step(self)
        if record.step in (50, 300):
            held.append(resident())
        return record

    monkeypatch.setattr(Trainer, "train_step", watched)
    run(corpus, tmp_path, steps=300, seq_len=4, eval_every=50, save_every=100, backend=backend.name)
    peak = [record["peak_memory"] for record in read_log(tmp_path, "step")]
    assert peak[299] <= 1.05 * peak[49]
    assert held[1] <= 1.05 * held[0]


@pytest.mark.slow
@pytest.mark.skipif(memory.resident_bytes() is None, reason="the system does not say")
def test_memory_is_flat_over_a_thousand_steps(backend, corpus, tmp_path):
    config = small(corpus, tmp_path, backend=backend.name, steps=flat.STEPS, **flat.EVENTS)
    with eager():
        found = flat.curve(config, TINY)
    for name, values in found.items():
        assert len(values) == flat.STEPS
        assert max(values[100:]) <= 1.05 * values[99], name
    fifth = [sum(found["resident"][start : start + 200]) / 200 for start in range(0, 1000, 200)]
    assert fifth[4] <= 1.01 * fifth[1]  # nothing that grows slowly either
