from __future__ import annotations

import json
import math
import os

import pytest

from mlx_pam.errors import RunError
from mlx_pam.training.metrics import LOG, Log, read_log, repetition, unique_ratio


def test_repetition_counts_n_grams_seen_before():
    assert repetition([1, 2, 3, 4, 5], 3) == 0.0
    assert repetition([1, 2, 3, 1, 2, 3], 3) == 1 / 4  # 123 231 312 123
    assert repetition([7] * 9, 4) == pytest.approx(5 / 6)
    assert repetition([1, 2], 3) == 0.0


def test_unique_ratio_counts_different_tokens():
    assert unique_ratio([1, 1, 2, 3]) == 0.75
    assert unique_ratio([]) == 0.0


def write_steps(log: Log, steps: range) -> None:
    for step in steps:
        log.write("step", {"step": step, "loss": 1.0 / step})


def test_a_resumed_log_holds_each_step_once(tmp_path):
    log = Log(tmp_path)
    write_steps(log, range(1, 8))
    log.close()
    log = Log(tmp_path, resumed=5)
    write_steps(log, range(6, 9))
    log.close()
    assert [record["step"] for record in read_log(tmp_path)] == list(range(1, 9))


def test_a_line_cut_by_a_crash_is_dropped(tmp_path):
    log = Log(tmp_path)
    write_steps(log, range(1, 4))
    log.close()
    whole = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(whole[:-1])  # the record is whole but its end of line is not
    log = Log(tmp_path, resumed=3)
    write_steps(log, range(4, 5))
    log.close()
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2, 4]


def test_a_log_without_a_checkpoint_to_resume_is_appended_to(tmp_path):
    for steps in (range(1, 3), range(3, 5)):
        log = Log(tmp_path)
        write_steps(log, steps)
        log.close()
    assert [record["step"] for record in read_log(tmp_path, "step")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "rubbish", [b'{"event": "st', b"\xff\xfe", b"[1]", b"{}", b"", b"[" * 9999]
)
def test_a_line_that_is_no_record_is_passed_over(tmp_path, rubbish):
    log = Log(tmp_path)
    write_steps(log, range(1, 3))
    log.close()
    whole = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(whole + rubbish + b"\n" + whole + rubbish)
    assert [record["step"] for record in read_log(tmp_path, "step")] == [1, 2, 1, 2]


def test_every_line_is_json_even_for_a_loss_that_is_not_a_number(tmp_path):
    log = Log(tmp_path)
    log.write("diverged", {"step": 1, "loss": math.nan, "grad_norm": math.inf, "all": [math.nan]})
    log.close()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads((tmp_path / LOG).read_text(), parse_constant=refuse)
    assert (record["loss"], record["grad_norm"], record["all"]) == ("nan", "inf", ["nan"])


def test_a_log_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(RunError, match=r"log\.jsonl: it is not a regular file"):
        Log(tmp_path)
