from __future__ import annotations

import io

import pytest
from rich.console import Console

from mlx_pam.training import progress
from mlx_pam.training.metrics import StepRecord


def record(step: int) -> StepRecord:
    return StepRecord(
        step=step, tokens=16 * step, loss=2.0, perplexity=7.389, lr=1e-3, grad_norm=0.5,
        tokens_per_s=1234.5, peak_memory=2_000_000, elapsed=step * 1.0,
    )  # fmt: skip


def shown(terminal: bool, steps: int = 50) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, no_color=True)
    with progress.display(console, 0, steps) as display:
        for step in range(1, steps + 1):
            display.step(record(step))
        display.busy("validating")
        display.say("a sample with [bold]brackets[/bold] and a line " + "that is long " * 20)
    return file.getvalue()


def test_a_pipe_gets_the_first_and_the_last_of_many_quick_steps(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
    lines = shown(terminal=False).splitlines()
    assert [line.split(" · ")[0] for line in lines[:-1]] == ["step 1/50", "step 50/50"]
    assert lines[0].endswith(
        "loss 2.0000 · perplexity 7.4 · 1,234 tokens/s · 0:00:00 left · 2.0 MB"
    )


def test_a_pipe_gets_a_line_for_every_step_that_takes_long(monkeypatch):
    clock = iter(range(0, 10_000, 11))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    assert shown(terminal=False, steps=6).count("step ") == 6


def test_a_terminal_gets_a_live_line():
    text = shown(terminal=True)
    assert "50/50" in text
    assert "validating" in text
    assert "\x1b[" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_text_is_shown_as_it_is(terminal):
    assert "[bold]brackets[/bold] and a line that is long that is" in shown(terminal)


def test_a_character_that_the_encoding_lacks_ends_no_run():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    progress.say(Console(file=file), "step 1 · été")
    assert file.buffer.getvalue() == b"step 1 ? ?t?\n"


def test_time_left_is_the_pace_of_this_session(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    clock = progress.Clock(step=10, last_step=30)
    now[0] += 8.0  # four steps of two seconds
    assert clock.left(14) == pytest.approx(32.0)
    assert progress.duration(clock.left(14)) == "0:00:32"


def test_output_that_cannot_be_written_is_dropped(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self):
            raise OSError(5, "Input/output error")

    for terminal in (False, True):
        monkeypatch.setattr("sys.stdout", Gone())
        monkeypatch.setattr(Gone, "isatty", lambda _, answer=terminal: answer)
        console = progress.open_console(stderr=False, quiet=False)
        assert console.is_terminal == terminal
        with progress.display(console, 0, 3) as display:
            for step in range(1, 4):
                display.step(record(step))
            display.say("a sample")
