"""A run on two processes is the run of one: steps, log, checkpoints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import corpus as corpus
from small_run import run, small

from mlx_pam import checkpoint, processes
from mlx_pam.backend import get_backend
from mlx_pam.errors import BackendError, ConfigError
from mlx_pam.training.metrics import read_log
from mlx_pam.training.plan import make_plan

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("mlx_pam.torch.runtime")
two_processes = pytest.importorskip("two_processes")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="gloo needs a host name that resolves"
)
parallel = pytest.mark.parametrize("parallel", ["ddp", "fsdp"])

BUSY = {
    "steps": 6, "batch_size": 4, "accumulate": 2, "eval_every": 3, "save_every": 4,
    "sample_every": 3, "sample_tokens": 5,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cpu():
    """One process works on the CPU too, where sums are the same in every run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "best_device", lambda: torch.device("cpu"))
        yield


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory) -> dict[str, Path]:
    """Folders of runs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(corpus, folder / "busy", backend="torch", **BUSY)
    run(corpus, folder / "long", backend="torch", steps=10)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def together(corpus, tmp_path_factory) -> tuple[list[dict[str, Any]], Path, Any]:
    """What all jobs of this file came to in each process, their folder, and how torchrun ended."""
    folder = tmp_path_factory.mktemp("together")
    run(corpus, folder / "moved", backend="torch", steps=10, stop_after=3)
    jobs: dict[str, Any] = {}

    def train(name: str, out: str | None = None, **settings: Any) -> None:
        paths = {"corpus": str(corpus), "out": str(folder / (out or name))}
        jobs[name] = ("train", paths | settings)

    train("ddp", **BUSY)
    train("fsdp", **BUSY, parallel="fsdp")
    train("moved-ddp", "moved", steps=10, stop_after=5, resume=True)
    train("moved-fsdp", "moved", steps=10, stop_after=8, resume=True, parallel="fsdp")
    train("again", "ddp", **BUSY)
    train("odd", batch_size=3)
    train("nan", fault="nan", save_every=1)
    train("signal", fault="signal")
    for family in two_processes.FAMILIES:
        for mode in ("ddp", "fsdp"):
            jobs[f"{family}-{mode}"] = ("learn", {"family": family, "parallel": mode})
    for mode in ("ddp", "fsdp"):
        jobs[f"half-{mode}"] = ("learn", {"family": "pam", "parallel": mode, "dtype": "bfloat16"})
    train("crash", fault="crash")
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [two_processes.__file__, str(folder / "jobs.json")]
    environment = os.environ | {
        "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = [json.loads((folder / f"process-{rank}.json").read_text()) for rank in (0, 1)]
    assert found[0].keys() == jobs.keys() - {"crash"}, done.stderr
    return found, folder, done


@pytest.mark.parametrize("family", two_processes.FAMILIES)
@parallel
def test_two_processes_learn_as_one(together, family, parallel):
    (main, other), _, _ = together
    with pytest.MonkeyPatch.context() as patch:
        expected = two_processes.learn(patch, family)
    for found in (main[f"{family}-{parallel}"], other[f"{family}-{parallel}"]):
        for name in ("loss", "norm", "evaluation"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5), name
        np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-4)
    weights = main[f"{family}-{parallel}"]["weights"]
    assert other[f"{family}-{parallel}"]["weights"] == []  # one process holds what is saved
    for array, right in zip(weights, expected["weights"], strict=True):
        np.testing.assert_allclose(array, right, atol=1e-4)


def test_a_divided_model_has_the_same_types_in_bfloat16(together):
    (main, _), _, _ = together
    for name in ("loss", "norm", "evaluation"):
        assert main["half-fsdp"][name] == pytest.approx(main["half-ddp"][name], rel=1e-4), name


def test_gradients_are_reduced_once_in_an_update(together):
    (main, other), _, _ = together
    main, other = main["pam-ddp"], other["pam-ddp"]
    for mine, theirs in zip(main["halfway"], other["halfway"], strict=True):
        assert mine != pytest.approx(theirs, rel=1e-3)  # each has its own rows' so far
    assert main["norm"] == other["norm"]


@parallel
def test_a_run_of_two_processes_is_the_run_of_one(alone, together, parallel):
    found, folder, _ = together
    expected = read_log(alone["busy"])
    log = read_log(folder / parallel)
    assert [record["event"] for record in log] == [record["event"] for record in expected]
    for record, right in zip(log, expected, strict=True):
        assert record["tokens"] == right["tokens"]
        for name, tolerance in (("loss", 1e-5), ("lr", 0), ("grad_norm", 1e-4)):
            expected_value = pytest.approx(right.get(name, 0), rel=tolerance)
            assert record.get(name, 0) == expected_value, name
        assert record.get("text") == right.get("text")
    for each in found:
        assert each[parallel]["status"] == "finished"
        assert each[parallel]["loss"] == log[-4]["loss"]
    assert_close(folder / parallel, alone["busy"])


def test_a_run_goes_on_with_another_number_of_processes(alone, together, corpus):
    _, folder, _ = together
    assert run(corpus, folder / "moved", backend="torch", steps=10, resume=True).step == 10
    for record, right in zip(steps(folder / "moved"), steps(alone["long"]), strict=True):
        assert record["step"] == right["step"]
        assert record["tokens"] == right["tokens"]
        assert record["loss"] == pytest.approx(right["loss"], rel=1e-5)
    assert_close(folder / "moved", alone["long"])


def test_only_the_main_process_prints(together):
    _, folder, done = together
    lines = done.stdout.splitlines()
    assert lines.count(f"finished at step 6 of 6; saved {folder / 'ddp' / 'step-00000006'}") == 1
    assert sum(line.startswith("backend ") for line in lines) == 7  # runs that began
    assert "2 processes (fsdp)" in done.stdout


def test_an_error_is_that_of_every_process(together):
    found, folder, _ = together
    for each in found:
        assert (
            "batch_size must be a multiple of 2, the number of processes, got 3"
            in (each["odd"]["error"])
        )
        assert "out must be a folder without a run" in each["again"]["error"]
    assert not (folder / "odd").exists()


def test_a_blow_up_in_one_process_stops_them_all_at_that_step(together):
    found, folder, _ = together
    errors = [each["nan"]["error"] for each in found]
    assert errors[0] == errors[1]
    assert "diverged at step 3" in errors[0]
    assert str(folder / "nan" / "step-00000002") in errors[0]
    assert [record["step"] for record in read_log(folder / "nan", "diverged")] == [3]


def test_a_signal_to_one_process_stops_them_all_after_the_same_step(together):
    found, folder, _ = together
    for each in found:
        assert (each["signal"]["status"], each["signal"]["step"]) == ("interrupted", 3)
    assert checkpoint.find(folder / "signal") == folder / "signal" / "step-00000003"
    assert [record["step"] for record in steps(folder / "signal")] == [1, 2, 3]


def test_a_process_that_fails_ends_the_job(together):
    found, folder, done = together
    assert found[0].keys() == found[1].keys()  # nothing came after
    assert [record["step"] for record in steps(folder / "crash")] == [1, 2]
    assert done.returncode != 0
    assert "RuntimeError: the second process has a fault" in done.stderr


def test_mlx_does_not_share_a_run(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BackendError, match=r"mlx trains in one process, got 2: .*torchrun"):
        get_backend("mlx", "ddp")


def test_a_batch_is_divided_evenly(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"batch_size must be a multiple of 3, .* got 4"):
        make_plan(small(corpus, tmp_path, batch_size=4))


def test_the_launcher_is_part_of_how_to_go_on(monkeypatch):
    assert (processes.count(), processes.rank(), processes.launcher()) == (1, 0, "")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert processes.launcher() == "torchrun --nproc-per-node 2 -m "
    assert not processes.is_main()


def steps(run: Path) -> list[dict[str, Any]]:
    return read_log(run, "step")


def assert_close(one: Path, other: Path) -> None:
    """Newest checkpoints of two runs: all that a run goes on from."""
    a, b = (checkpoint.load(run, optimizer=True) for run in (one, other))
    assert a.training["step"] == b.training["step"]
    assert a.training["data"] == b.training["data"]
    for name, array in b.weights.items():
        np.testing.assert_allclose(a.weights[name], array, atol=1e-4, err_msg=name)
    for name, array in b.optimizer.items():
        scale = np.abs(array).max()
        np.testing.assert_allclose(a.optimizer[name], array, atol=1e-4 * scale, err_msg=name)
