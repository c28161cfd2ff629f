"""The self-test's loop is the oracle's, and a form that is wrong does not pass it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from drawing import draw

from mlx_pam import backend, cli
from mlx_pam import selftest as module
from mlx_pam.selftest import GRADIENTS, VALUES, exact, selftest

NAMES = (*VALUES, *GRADIENTS)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One length and one width: enough where the machine is not what is tested."""
    monkeypatch.setattr(module, "_LENGTHS", (33,))
    monkeypatch.setattr(module, "_WIDTHS", (8,))


def joined(array: np.ndarray, *, is_complex: bool, is_square: bool) -> np.ndarray:
    """Without the batch, and with the two planes made one complex array."""
    array = np.asarray(array[0], np.float64)
    return oracle.join(array, axis=-3 if is_square else -2) if is_complex else array


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("decay", ["mixed", "cliff"])
def test_the_loop_is_the_oracle(decay: str, is_complex: bool) -> None:
    inputs, dy, dstate = draw(is_complex, 20, 6, decay, batch=1)
    y, state = oracle.retrieve(*inputs)
    expected = [y, state, *oracle.retrieve_gradients(*inputs, dy, dstate)]
    *rows, log_decay, initial = inputs
    found = exact(
        [
            *(joined(x, is_complex=is_complex, is_square=False) for x in rows),
            np.asarray(log_decay[0], np.float64),
            joined(initial, is_complex=is_complex, is_square=True),
        ],
        [
            joined(dy, is_complex=is_complex, is_square=False),
            joined(dstate, is_complex=is_complex, is_square=True),
        ],
    )
    for name, mine, theirs in zip(NAMES, found, expected, strict=True):
        is_plain = name == "dlog_decay" or not is_complex
        square = name in ("S_T", "dS_0")
        want = theirs[0] if is_plain else joined(theirs, is_complex=True, is_square=square)
        np.testing.assert_allclose(mine, want, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("wrong", range(len(NAMES)))
def test_a_wrong_array_does_not_pass(wrong: int, short: None) -> None:
    honest = backend.get_backend("mlx")

    def lie(*arguments):
        values, gradients = honest.retrieve_with_gradients(*arguments)
        arrays = [*values, *gradients]
        arrays[wrong] = arrays[wrong] * 1.01
        return arrays[: len(VALUES)], arrays[len(VALUES) :]

    row = next(selftest(SimpleNamespace(forms=("parallel",), retrieve_with_gradients=lie)))
    assert not row.passed
    assert row.errors[NAMES[wrong]] == pytest.approx(0.01, rel=0.1)


def test_every_form_passes_on_this_machine(capsys) -> None:
    assert cli.main(["selftest"]) == 0
    page = capsys.readouterr().out
    forms = backend.get_backend("auto").forms
    assert [form for form in forms if page.count(form) != 2] == []
    assert "every form agrees" in page


def test_a_machine_may_read_it(short: None, capsys) -> None:
    assert cli.main(["selftest", "--json", "--dtype", "bfloat16"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["passed"]
    assert all(set(row["errors"]) == set(NAMES) for row in record["rows"])


def test_a_form_that_differs_is_told_and_ends_with_1(short: None, monkeypatch, capsys) -> None:
    honest = backend.get_backend("mlx")

    def broken(*arguments):
        values, gradients = honest.retrieve_with_gradients(*arguments)
        return [values[0] * float("nan"), values[1]], gradients

    fake = SimpleNamespace(
        forms=("parallel",), description="a liar", retrieve_with_gradients=broken
    )
    monkeypatch.setattr(backend, "get_backend", lambda _: fake)
    assert cli.main(["selftest"]) == 1
    assert "FAILED" in capsys.readouterr().out
