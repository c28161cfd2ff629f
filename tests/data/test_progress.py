"""Long readings show bytes, speed and time left, on a terminal or in lines; short ones nothing."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console
from rich.errors import LiveError

from mlx_pam.data import progress as module
from mlx_pam.data.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def screen(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> io.StringIO:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, legacy_windows=False)
    monkeypatch.setattr(module, "Console", lambda **_: console)
    return out


def test_lines_tell_how_far_how_fast_and_how_long(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = screen(monkeypatch, terminal=False)
    with Progress("reading x", 10_000_000) as progress:
        progress.advance(1_000_000)
        clock[0] += 10
        progress.advance(1_000_000)
        clock[0] += 5
        progress.advance(1_000_000)
        clock[0] += 5
        progress.advance(7_000_000)
    assert out.getvalue().splitlines() == [
        "reading x: 2.0 MB of 10.0 MB, 0:00:40 left, 200.0 kB/s",
        "reading x: 10.0 MB of 10.0 MB, 0:00:00 left, 500.0 kB/s",
        "reading x: 10.0 MB in 0:00:20, 500.0 kB/s",
    ]


def test_short_work_leaves_no_trace_and_an_error_no_last_line(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = screen(monkeypatch, terminal=False)
    with Progress("reading x", 10) as progress:
        progress.advance(10)
    unfinished = Progress("reading y")
    clock[0] += 60
    unfinished.__enter__().__exit__(ValueError, ValueError(), None)
    assert out.getvalue() == ""


def test_a_terminal_has_a_bar_with_speed_that_goes_when_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = screen(monkeypatch, terminal=True)
    with Progress("reading x", 10_000_000) as progress:
        progress.advance(5_000_000)
        progress._bar.refresh()
        assert "reading x" in out.getvalue()
        assert "5.0/10.0 MB" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")  # the line is cleared


def test_other_threads_and_second_bars_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = screen(monkeypatch, terminal=True)

    def work() -> None:
        with Progress("reading x", 10) as progress:
            progress.advance(10)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert out.getvalue() == ""

    def only_one(_: object) -> None:
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(module.progress.Progress, "start", only_one)
    work()
    assert out.getvalue() == ""
