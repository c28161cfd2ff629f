from __future__ import annotations

import errno
import os
import signal
import threading

import pytest

from mlx_pam.training.interrupt import SIGNALS, WARNINGS, Interrupt


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_request_and_says_so(number, capfd):
    with Interrupt() as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), number)
        assert interrupt.requested
    assert "stopping" in capfd.readouterr().err


def test_the_second_ctrl_c_acts_as_usual():
    with Interrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_terminal_that_closes_may_say_so_twice(capfd):
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)  # the first that asks
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err.count("stopping") == 1


@pytest.mark.parametrize("number", WARNINGS)
def test_a_scheduler_may_repeat_its_warning_before_it_ends_the_run(number, capfd):
    with Interrupt() as interrupt:
        signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested
    said = capfd.readouterr().err
    assert said.count("stopping") == 1
    assert "once more" not in said


@pytest.mark.parametrize("number", WARNINGS)
def test_a_warning_that_the_program_handles_itself_is_left_to_it(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append(number))
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(number)
            assert (interrupt.requested, seen) == (False, [number])
    finally:
        signal.signal(number, before)


def test_a_terminal_that_is_gone_does_not_break_the_request(monkeypatch):
    def gone(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", gone)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGHUP)
        assert interrupt.requested


@pytest.mark.parametrize("number", SIGNALS)
def test_what_was_ignored_before_is_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(number)
            assert not interrupt.requested
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupt():
        assert all(
            signal.getsignal(number) is not handler
            for number, handler in zip(SIGNALS, before, strict=True)
        )
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_thread_that_gets_no_signals_may_train_too():
    seen = []

    def work():
        with Interrupt() as interrupt:
            seen.append(interrupt.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
