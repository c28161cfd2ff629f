"""What is to be found by fuzzing would be found: an error, a hang, a lie that takes gigabytes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fuzz import attack as module
from fuzz.attack import REPLAY, attack, command, refused

from mlx_pam import cli
from mlx_pam.errors import DataError


@pytest.fixture(autouse=True)
def no_replay(monkeypatch):
    monkeypatch.delenv(REPLAY, raising=False)


def test_an_error_is_told_with_the_number_that_repeats_it(monkeypatch):
    tried = []

    def one(random):
        tried.append(random.random())
        if len(tried) == 8:
            raise KeyError("lost")

    with pytest.raises(pytest.fail.Exception, match=f"{REPLAY}=7(?s:.*)KeyError: 'lost'"):
        attack("doors", 20, one)
    assert len(tried) == 20
    monkeypatch.setenv(REPLAY, "7")
    again = []
    attack("doors", 20, lambda random: again.append(random.random()))
    assert again == [tried[7]]
    monkeypatch.setenv(REPLAY, "5+3")
    attack("doors", 20, lambda random: again.append(random.random()))
    assert again[1:] == tried[5:8]


def test_an_endless_loop_is_ended_and_told(monkeypatch):
    monkeypatch.setattr(module, "CPU_SECONDS", 0.05)

    def endless(_):
        while True:
            pass

    with pytest.raises(pytest.fail.Exception, match="TooSlow"):
        attack("loops", 1, endless)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for a limit of memory")
def test_an_array_of_gigabytes_is_told():
    with pytest.raises(pytest.fail.Exception, match="MemoryError"):
        attack("arrays", 1, lambda _: np.ones(1 << 32))
    np.ones(1 << 10)


def test_only_errors_of_ours_with_a_text_are_refusals():
    def fail(error):
        raise error

    assert refused(lambda: fail(DataError("it is too short")))
    assert not refused(lambda: None)
    with pytest.raises(AssertionError):
        refused(lambda: fail(DataError("")))
    with pytest.raises(KeyError):
        refused(lambda: fail(KeyError("x")))


@pytest.mark.parametrize("code", [3, 1])
def test_a_code_of_another_kind_or_without_a_word_is_no_answer(monkeypatch, code):
    monkeypatch.setattr(cli, "_dispatch", lambda words: code)
    with pytest.raises(AssertionError):
        command("runs")


def test_streams_encode_as_those_of_a_shell():
    assert command("ü\udcff") == 2
    assert command("--version") == 0
