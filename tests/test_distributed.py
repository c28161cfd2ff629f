"""A run on two processes is the run of one: steps, log, checkpoints, and how it ends."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import launching
import numpy as np
import pytest
import two_processes
from small_run import corpus as corpus
from small_run import run, small

from mlx_pam import checkpoint, processes
from mlx_pam.backend import get_backend
from mlx_pam.errors import BackendError, ConfigError
from mlx_pam.training.metrics import read_log
from mlx_pam.training.plan import make_plan

TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or sys.platform != "linux",
    reason="needs PyTorch, and gloo a host name that resolves",
)
MODES = {"mlx": ("mlx", "ddp"), "ddp": ("torch", "ddp"), "fsdp": ("torch", "fsdp")}

BUSY = {
    "steps": 6, "batch_size": 4, "accumulate": 2, "eval_every": 3, "save_every": 4,
    "sample_every": 3, "sample_tokens": 5, "diagnostics_every": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Together:
    """What all jobs came to in each process, their folder, and how the processes ended."""

    backend: str
    found: list[dict[str, Any]]
    folder: Path
    ended: launching.Ended


@pytest.fixture(scope="module", params=["mlx", pytest.param("torch", marks=TORCH)])
def library(request) -> str:
    """Each library in turn; one process works on the CPU too, where sums are always the same."""
    return request.param


@pytest.fixture(scope="module", autouse=True)
def cpu():
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    from mlx_pam.torch import runtime

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "best_device", lambda: torch.device("cpu"))
        yield


@pytest.fixture(scope="module")
def alone(library, corpus, tmp_path_factory) -> dict[str, Path]:
    """Folders of runs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(corpus, folder / "busy", backend=library, **BUSY)
    run(corpus, folder / "long", backend=library, steps=10)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def together(library, corpus, tmp_path_factory) -> Together:
    folder = tmp_path_factory.mktemp("together")
    run(corpus, folder / "moved", backend=library, steps=10, stop_after=3)
    jobs: dict[str, Any] = {}
    modes = {mode: parallel for mode, (backend, parallel) in MODES.items() if backend == library}

    def train(name: str, out: str | None = None, **settings: Any) -> None:
        paths = {"corpus": str(corpus), "out": str(folder / (out or name))}
        jobs[name] = ("train", paths | settings)

    for step, (mode, parallel) in enumerate(modes.items(), 2):
        train(f"busy-{mode}", **BUSY, parallel=parallel)
        train(f"moved-{mode}", "moved", steps=10, stop_after=3 * step - 1, resume=True,
              parallel=parallel)  # fmt: skip
    first = next(iter(modes))
    train("again", f"busy-{first}", **BUSY)
    train("odd", batch_size=3)
    train("nan", fault="nan", save_every=1)
    train("signal", fault="signal")
    for mode, parallel in modes.items():
        for family in two_processes.FAMILIES:
            jobs[f"{family}-{mode}"] = ("learn", {"family": family, "parallel": parallel})
        pam = {"family": "pam", "parallel": parallel}
        jobs[f"half-{mode}"] = ("learn", pam | {"dtype": "bfloat16"})
        jobs[f"recompute-{mode}"] = ("learn", pam | {"recompute": True})
    train("crash", fault="crash")
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    script = [two_processes.__file__, str(folder / "jobs.json")]
    ended = launching.launch(library, script, folder)
    found = [json.loads((folder / f"process-{rank}.json").read_text()) for rank in (0, 1)]
    assert found[1].keys() == jobs.keys() - {"crash"}, ended.stderr
    return Together(library, found, folder, ended)


def modes_of(together: Together) -> list[str]:
    return [mode for mode, (backend, _) in MODES.items() if backend == together.backend]


@pytest.mark.parametrize("family", two_processes.FAMILIES)
def test_two_processes_learn_as_one(together, family):
    with pytest.MonkeyPatch.context() as patch:
        expected = two_processes.learn(patch, together.backend, family)
    for mode in modes_of(together):
        main, other = (each[f"{family}-{mode}"] for each in together.found)
        for found in (main, other):
            for name in ("loss", "norm", "evaluation"):
                assert found[name] == pytest.approx(expected[name], rel=1e-5), (mode, name)
            np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-4)
            for told, right in zip(found["diagnostics"], expected["diagnostics"], strict=True):
                assert told == pytest.approx(right, rel=1e-3, abs=1e-5), mode
        assert other["weights"] == []  # one process holds what is saved
        for array, right in zip(main["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(array, right, atol=1e-4)


def test_what_decides_is_the_same_in_each_process_to_the_bit(together):
    for mode in modes_of(together):
        main, other = (each[f"pam-{mode}"] for each in together.found)
        for name in ("loss", "norm", "evaluation", "logits"):
            assert main[name] == other[name], (mode, name)


def test_blocks_computed_anew_leave_every_step_as_it_was(together):
    for mode in modes_of(together):
        for each in together.found:
            anew, kept = each[f"recompute-{mode}"], each[f"pam-{mode}"]
            for name in ("loss", "norm", "evaluation", "logits"):
                assert anew[name] == kept[name], (mode, name)


def test_bfloat16_is_that_of_one_process(together):
    with pytest.MonkeyPatch.context() as patch:
        expected = two_processes.learn(patch, together.backend, "pam", dtype="bfloat16")
    for mode in modes_of(together):
        found = together.found[0][f"half-{mode}"]
        assert found["loss"][:2] == pytest.approx(expected["loss"][:2], rel=1e-3), mode
        assert found["norm"][0] == pytest.approx(expected["norm"][0], rel=1e-2), mode


@TORCH
def test_a_divided_model_has_the_same_types_in_bfloat16(together):
    if "fsdp" not in modes_of(together):
        pytest.skip("nothing is divided")
    main, _ = together.found
    for name in ("loss", "norm", "evaluation"):
        assert main["half-fsdp"][name] == pytest.approx(main["half-ddp"][name], rel=1e-4), name


def test_gradients_are_reduced_once_in_an_update(together):
    main, other = (each[f"pam-{modes_of(together)[0]}"] for each in together.found)
    for mine, theirs in zip(main["halfway"], other["halfway"], strict=True):
        assert mine != pytest.approx(theirs, rel=1e-3)  # each has its own rows' so far
    assert main["norm"] == other["norm"]


def test_a_run_of_two_processes_is_the_run_of_one(alone, together):
    expected = read_log(alone["busy"])
    for mode in modes_of(together):
        folder = together.folder / f"busy-{mode}"
        log = read_log(folder)
        assert [record["event"] for record in log] == [record["event"] for record in expected]
        for record, right in zip(log, expected, strict=True):
            assert record["tokens"] == right["tokens"]
            for name, tolerance in (("loss", 1e-5), ("lr", 0), ("grad_norm", 1e-4)):
                expected_value = pytest.approx(right.get(name, 0), rel=tolerance)
                assert record.get(name, 0) == expected_value, name
            assert record.get("text") == right.get("text")
        for each in together.found:
            assert each[f"busy-{mode}"]["status"] == "finished"
            assert each[f"busy-{mode}"]["loss"] == steps(folder)[-1]["loss"]
        assert_close(folder, alone["busy"])


def test_a_run_goes_on_with_another_number_of_processes(alone, together, corpus):
    moved = together.folder / "moved"
    assert run(corpus, moved, backend=together.backend, steps=10, resume=True).step == 10
    for record, right in zip(steps(moved), steps(alone["long"]), strict=True):
        assert record["step"] == right["step"]
        assert record["tokens"] == right["tokens"]
        assert record["loss"] == pytest.approx(right["loss"], rel=1e-5)
    assert_close(moved, alone["long"])


def test_only_the_main_process_prints(together):
    modes = modes_of(together)
    folder = together.folder / f"busy-{modes[0]}"
    lines = together.ended.stdout.splitlines()
    assert lines.count(f"finished at step 6 of 6; saved {folder / 'step-00000006'}") == 1
    began = [line for line in lines if line.startswith("backend ")]
    assert len(began) == 2 * len(modes) + 3
    assert all("2 processes" in line for line in began)


def test_an_error_is_that_of_every_process(together):
    for each in together.found:
        assert (
            "batch_size must be a multiple of 2, the number of processes, got 3"
            in (each["odd"]["error"])
        )
        assert "out must be a folder without a run" in each["again"]["error"]
    assert not (together.folder / "odd").exists()


def test_a_blow_up_in_one_process_stops_them_all_at_that_step(together):
    errors = [each["nan"]["error"] for each in together.found]
    assert errors[0] == errors[1]
    assert "diverged at step 3" in errors[0]
    folder = together.folder / "nan"
    assert str(folder / "step-00000002") in errors[0]
    assert [record["step"] for record in read_log(folder, "diverged")] == [3]


def test_a_signal_to_one_process_stops_them_all_after_the_same_step(together):
    for each in together.found:
        assert (each["signal"]["status"], each["signal"]["step"]) == ("interrupted", 3)
    folder = together.folder / "signal"
    assert checkpoint.find(folder) == folder / "step-00000003"
    assert [record["step"] for record in steps(folder)] == [1, 2, 3]


def test_a_process_that_fails_ends_the_job(together):
    assert [record["step"] for record in steps(together.folder / "crash")] == [1, 2]
    assert together.ended.code != 0
    assert "RuntimeError: the second process has a fault" in together.ended.stderr
    if together.backend == "torch":
        assert "crash" not in together.found[0]  # torchrun has ended it too
    else:
        error = together.found[0]["crash"]["error"]
        assert error.startswith("BackendError: all 2 processes of a run must go on, got: [ring] ")
        assert "--resume" in error


@pytest.fixture
def by_torchrun(monkeypatch) -> Callable[[int, int], None]:
    """Let this be a process that torchrun started."""

    def start(count: int, rank: int = 0, here: int | None = None) -> None:
        monkeypatch.setenv("WORLD_SIZE", str(count))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here or count))

    return start


@pytest.fixture
def by_mlx_launch(monkeypatch, tmp_path) -> Callable[[list[list[str]], int], None]:
    """Let this be a process that mlx.launch started, with a file of the addresses of a ring."""

    def start(hosts: list[list[str]], rank: int = 0) -> None:
        file = tmp_path / f"hosts-{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps(hosts) if len(hosts) > 1 else "")
        monkeypatch.setenv("MLX_HOSTFILE", str(file))
        monkeypatch.setenv("MLX_RANK", str(rank))

    return start


def test_a_library_shares_a_run_under_its_own_launcher(by_torchrun, by_mlx_launch, monkeypatch):
    by_torchrun(2)
    with pytest.raises(
        BackendError, match=r"backend mlx must be started by mlx.launch, .*torchrun"
    ):
        get_backend("mlx", "ddp")
    monkeypatch.delenv("WORLD_SIZE")
    by_mlx_launch([["127.0.0.1:1"], ["127.0.0.1:2"]])
    with pytest.raises(ConfigError, match=r"parallel must be ddp with backend mlx.*got 'fsdp'"):
        get_backend("mlx", "fsdp")
    pytest.importorskip("torch")
    with pytest.raises(BackendError, match=r"torch must be started by torchrun, got mlx.launch"):
        get_backend("torch", "ddp")


def test_a_batch_is_divided_evenly(corpus, tmp_path, by_torchrun):
    by_torchrun(3)
    with pytest.raises(ConfigError, match=r"batch_size must be a multiple of 3, .* got 4"):
        make_plan(small(corpus, tmp_path, batch_size=4))


def test_the_launcher_is_part_of_how_to_go_on(by_torchrun, by_mlx_launch, monkeypatch):
    assert (processes.count(), processes.rank(), processes.launcher()) == (1, 0, "")
    by_torchrun(4, rank=3, here=2)
    assert (processes.count(), processes.rank(), processes.count_here()) == (4, 3, 2)
    assert processes.launcher() == "torchrun --nproc-per-node 2 -m "
    assert not processes.is_main()
    monkeypatch.delenv("WORLD_SIZE")
    by_mlx_launch([["127.0.0.1:1"], ["127.0.0.1:2"], ["127.0.0.1:3"]], rank=1)
    assert (processes.count(), processes.rank(), processes.count_here()) == (3, 1, 3)
    assert processes.launcher() == "mlx.launch -n 3 "
    by_mlx_launch([["10.0.0.1:1", "10.0.0.1:2"], ["10.0.0.2:3", "10.0.0.2:4"]])
    assert (processes.count(), processes.rank(), processes.count_here()) == (2, 0, 1)
    assert processes.launcher() == "mlx.launch --hostfile HOSTFILE "
    by_mlx_launch([["127.0.0.1:1"]])
    assert (processes.count(), processes.launcher()) == (1, "")
    monkeypatch.setenv("MLX_WORLD_SIZE", "2")  # NCCL
    assert (processes.count(), processes.started_by()) == (2, "mlx.launch")


def test_devices_of_thunderbolt_tell_how_many_machines_there_are(monkeypatch, tmp_path):
    file = tmp_path / "devices.json"
    file.write_text(json.dumps([[None, "rdma_en2"], ["rdma_en2", None]]))
    monkeypatch.setenv("MLX_IBV_DEVICES", str(file))
    monkeypatch.setenv("MLX_RANK", "1")
    assert (processes.count(), processes.rank(), processes.count_here()) == (2, 1, 1)


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
