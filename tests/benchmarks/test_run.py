"""The table of cases is sound, and the command line narrows it as it says."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from mlx_pam.benchmarks import rows, run, worker
from mlx_pam.benchmarks.cases import CASES
from mlx_pam.benchmarks.workloads import WORKLOADS

each_case = pytest.mark.parametrize("name", CASES)


@each_case
def test_every_variant_can_be_built_from_every_setting(name: str) -> None:
    case = CASES[name]
    for setting in case.settings:
        for variant in case.variants.values():
            job = variant.job(setting)
            build = inspect.signature(WORKLOADS[job.workload])
            build.bind(**job.settings)
            prepare = inspect.signature(WORKLOADS[job.workload].prepare)
            prepare.bind(None, **job.turn)


@each_case
def test_ratios_are_of_variants_and_every_setting_has_its_time(name: str) -> None:
    case = CASES[name]
    assert {variant for pair in case.pairs for variant in pair} <= case.variants.keys()
    assert len(case.minutes) == len(case.settings)


def settings(name: str, *words: str) -> list[dict]:
    return run.replaced(CASES[name].settings, run.arguments().parse_args([name, *words]))


def test_a_scale_selects_the_settings_that_have_it() -> None:
    assert [s["seq_len"] for s in settings("length", "--scale", "100m")] == [512, 2048, 4096, 8192]


def test_a_new_value_replaces_the_cases_own_and_rows_are_not_repeated() -> None:
    words = ("--scale", "10m", "--seq-len", "64", "--batch-size", "1", "--threads", "3")
    assert settings("train", *words) == [
        {"scale": "10m", "batch_size": 1, "seq_len": 64, "threads": 3}
    ]


def test_threads_are_the_cases_own_unless_given() -> None:
    assert [s["threads"] for s in settings("decode", "--scale", "5m")] == [1, 2]
    assert [s["threads"] for s in settings("decode", "--scale", "5m", "--threads", "4")] == [4]


def test_variants_are_kept_by_a_word_of_their_name() -> None:
    assert list(run.narrowed(CASES["train"], ["naive", "PAM b"]).variants) == [
        "naive fp32",
        "PAM bf16",
    ]


class Counter:
    """A workload that counts."""

    def __init__(self) -> None:
        self.facts = {"first_loss": 1.0}
        self.steps = 0

    def prepare(self, **turn):
        return dict(turn)

    def step(self) -> float:
        self.steps += 1
        return 5

    def synchronise(self) -> None:
        pass

    def rest(self) -> None:
        self.rests = getattr(self, "rests", 0) + 1

    def peak_bytes(self) -> int:
        return 7


def test_a_turn_is_of_as_many_steps_as_its_warm_up_found_to_fill_it() -> None:
    workload, steps = Counter(), {}
    warm = worker._turn(workload, {"context": 1}, 1e-4, steps)
    assert workload.steps == 2
    result = worker._turn(workload, {"context": 1}, None, steps)
    assert workload.steps == 2 + warm["steps"]
    assert warm["steps"] >= 1
    facts = {"first_loss": 1.0, "context": 1, "steps_per_turn": warm["steps"]}
    assert result["facts"] == facts
    assert result["peak_bytes"] == 7
    assert result["rate"] > 0
    assert workload.rests == 2


def test_rows_are_added_to_what_is_there_in_a_folder_that_need_not_be(tmp_path) -> None:
    file = tmp_path / "new" / "rows.jsonl"
    rows.add(file, [{"a": 1}])
    rows.add(file, [{"a": 2}, {"a": 3}])
    assert [json.loads(line)["a"] for line in file.read_text().splitlines()] == [1, 2, 3]


def test_the_script_runs_by_its_path_and_as_a_module() -> None:
    pages = [
        subprocess.run([sys.executable, *words, "--list"], check=True, capture_output=True).stdout
        for words in ([run.__file__], ["-m", run.__name__])
    ]
    assert pages[0] == pages[1] != b""
