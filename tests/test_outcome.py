"""Messages from the main process to the others arrive unchanged and are plain data."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_pam import outcome
from mlx_pam.errors import CheckpointError, ConfigError, MlxPamError, RunError


@pytest.mark.parametrize(
    "result",
    [None, 3, 0.1, "größer", {"evaluation": {"loss": 1 / 3, "parts": ["a"]}}, Path("a b/ü\udc80")],
)
def test_a_result_arrives_as_it_was(result):
    received = outcome.receive(outcome.message(lambda: result))
    assert received == result
    assert type(received) is type(result)


class Special(RunError):
    def __init__(self, record: object) -> None:
        super().__init__("the text")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("the text"), ConfigError),
        (CheckpointError("the text"), CheckpointError),
        (Special(object()), RunError),
    ],
)
def test_an_error_is_raised_where_it_arrives(error: MlxPamError, kind: type):
    def work() -> None:
        raise error

    with pytest.raises(MlxPamError, match="the text") as raised:
        outcome.receive(outcome.message(work))
    assert type(raised.value) is kind


def test_what_is_no_error_of_a_user_is_not_sent():
    with pytest.raises(ZeroDivisionError):
        outcome.message(lambda: 1 // 0)
    with pytest.raises(TypeError):
        outcome.message(object)
    with pytest.raises(KeyError):
        outcome.receive(b'{"error": "SystemExit", "text": ""}')
