"""A run that is looked into: what its log has of the blocks, and that it is the run it would be."""

from __future__ import annotations

import functools
import math

import pytest
from small_run import TINY_TRANSFORMER, assert_same_run, run

from mlx_pam.training import trainer
from mlx_pam.training.metrics import read_log
from mlx_pam.training.trainer import Diverged, Trainer

STATISTICS = ("rms", "active", "small_gate", "decay", "protect")
FIELDS = {f"layers.{i}.{name}" for i in (0, 1) for name in STATISTICS}
NORMS = {f"{block}.grad_norm" for block in ("embedding", "layers.0", "layers.1", "head")}
BUSY = {"accumulate": 2, "eval_every": 7, "save_every": 5, "sample_every": 9, "sample_tokens": 4}


def steps_of(out) -> list[int]:
    return [record["step"] for record in read_log(out, "diagnostics")]


def test_a_run_that_is_looked_into_is_the_run_it_would_be(backend, corpus, tmp_path):
    for out, every in (("plain", 0), ("looked", 1)):
        run(corpus, tmp_path / out, backend=backend.name, diagnostics_every=every, **BUSY)
    assert_same_run(tmp_path / "plain", tmp_path / "looked")
    assert steps_of(tmp_path / "plain") == []
    assert steps_of(tmp_path / "looked") == list(range(1, 21))


def test_the_log_has_every_block_at_every_such_step(backend, corpus, tmp_path):
    run(corpus, tmp_path, backend=backend.name, diagnostics_every=6, accumulate=2)
    steps = {record["step"]: record for record in read_log(tmp_path, "step")}
    assert steps_of(tmp_path) == [6, 12, 18]
    for record in read_log(tmp_path, "diagnostics"):
        assert record.keys() == FIELDS | NORMS | {"event", "step", "tokens", "time"}
        step = steps[record["step"]]
        assert record["tokens"] == step["tokens"]
        norm = math.hypot(*(record[name] for name in NORMS))
        assert norm == pytest.approx(step["grad_norm"], rel=1e-5)


def test_a_transformer_tells_what_it_has(backend, corpus, tmp_path):
    config = TINY_TRANSFORMER
    run(corpus, tmp_path, config, backend=backend.name, steps=2, diagnostics_every=2)
    (record,) = read_log(tmp_path, "diagnostics")
    sizes = {"layers.0.rms", "layers.1.rms"}
    assert record.keys() == sizes | NORMS | {"event", "step", "tokens", "time"}


def test_one_window_of_the_step_is_read_before_the_update(corpus, tmp_path, monkeypatch):
    build, told = Trainer.__init__, []

    def spy(name, method, *given):
        told.append((name, given))
        return method(*given)

    def spied(self, *args):
        build(self, *args)
        for name in ("gradient", "diagnostics", "update"):
            setattr(self.learner, name, functools.partial(spy, name, getattr(self.learner, name)))

    monkeypatch.setattr(Trainer, "__init__", spied)
    run(corpus, tmp_path, steps=1, accumulate=3, diagnostics_every=1)
    *_, third, looked, updated = told
    assert [name for name, _ in (third, looked, updated)] == ["gradient", "diagnostics", "update"]
    assert looked[1][0].tolist() == third[1][0][:1].tolist()


def test_a_resumed_run_has_each_step_once(corpus, tmp_path):
    settings = {"diagnostics_every": 2, "save_every": 5, "steps": 12}
    run(corpus, tmp_path, stop_after=7, **settings)
    run(corpus, tmp_path, resume=True, **settings)
    assert steps_of(tmp_path) == [2, 4, 6, 8, 10, 12]


def test_looking_is_no_time_of_training(corpus, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now[0])
    build = Trainer.__init__

    def slow(self, *args):
        build(self, *args)
        gradient, diagnostics = self.learner.gradient, self.learner.diagnostics

        def take(seconds, value):
            now[0] += seconds
            return value

        self.learner.gradient = lambda *given: take(1.0, gradient(*given))
        self.learner.diagnostics = lambda *given: take(100.0, diagnostics(*given))

    monkeypatch.setattr(Trainer, "__init__", slow)
    run(corpus, tmp_path, steps=4, diagnostics_every=2)
    records = read_log(tmp_path, "step")
    assert [record["elapsed"] for record in records] == [1.0, 2.0, 3.0, 4.0]
    assert {record["tokens_per_s"] for record in records} == {16.0}


@pytest.fixture
def blow_up(monkeypatch):
    """The gradient of step 3 is said not to be finite, in a run that is looked into at step 5."""
    build = Trainer.__init__

    def sabotaged(self, *args):
        build(self, *args)
        norm = self.learner.gradient_norm
        self.learner.gradient_norm = lambda: math.nan if self.step + 1 == 3 else norm()

    monkeypatch.setattr(Trainer, "__init__", sabotaged)


def test_a_step_that_is_not_finite_is_looked_into_at_once(corpus, tmp_path, blow_up):
    run(corpus, tmp_path, steps=6, diagnostics_every=5, on_nonfinite="skip")
    assert steps_of(tmp_path) == [3, 5]
    with pytest.raises(Diverged):
        run(corpus, tmp_path / "stopped", steps=6, diagnostics_every=5)
    events = [record["event"] for record in read_log(tmp_path / "stopped")]
    assert events[-2:] == ["diagnostics", "diverged"]
    with pytest.raises(Diverged):
        run(corpus, tmp_path / "unseen", steps=6)
    assert steps_of(tmp_path / "unseen") == []
