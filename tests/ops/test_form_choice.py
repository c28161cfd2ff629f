"""Which form `retrieve` takes: the argument's, else MLX_PAM_FORM's, else the best there is here."""

from __future__ import annotations

import importlib
from functools import partial
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from drawing import draw

from mlx_pam.errors import ConfigError, MlxPamError
from mlx_pam.ops import metal, retrieval

PLAIN = ("recurrent", "parallel", "chunkwise")


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_PAM_FORM", raising=False)


@pytest.fixture(params=["mlx", "torch"])
def door(request: pytest.FixtureRequest) -> ModuleType:
    """The operator of each backend."""
    if request.param == "mlx":
        return retrieval
    pytest.importorskip("torch")
    return importlib.import_module("mlx_pam.torch.ops.retrieval")


def asked(door: ModuleType, monkeypatch: pytest.MonkeyPatch, **wish: str) -> str:
    """The form that answers, every form being one that only says its name."""
    for name in door.FORMS:
        monkeypatch.setitem(door.FORMS, name, lambda *_, name=name: name)
    return door.retrieve(*arrays(door), **wish)


def arrays(door: ModuleType) -> list[Any]:
    inputs, *_ = draw(True, 3, 8, "smooth")
    if door is retrieval:
        return [mx.array(x) for x in inputs]
    return [importlib.import_module("torch").from_numpy(x) for x in inputs]


@pytest.mark.parametrize("name", PLAIN)
def test_the_environment_takes_the_place_of_auto(door, name, monkeypatch):
    monkeypatch.setenv("MLX_PAM_FORM", name)
    assert asked(door, monkeypatch) == asked(door, monkeypatch, form="auto") == name


@pytest.mark.parametrize("name", PLAIN)
def test_the_argument_wins_over_the_environment(door, name, monkeypatch):
    monkeypatch.setenv("MLX_PAM_FORM", "parallel" if name != "parallel" else "recurrent")
    assert asked(door, monkeypatch, form=name) == name


@pytest.mark.parametrize("text", ["", "auto"])
def test_an_environment_that_wishes_nothing_changes_nothing(door, text, monkeypatch):
    without = asked(door, monkeypatch)
    monkeypatch.setenv("MLX_PAM_FORM", text)
    assert asked(door, monkeypatch) == without


def test_a_form_that_is_not_there_is_an_error_that_names_the_variable(door, monkeypatch):
    monkeypatch.setenv("MLX_PAM_FORM", "fast")
    with pytest.raises(MlxPamError, match=r"MLX_PAM_FORM.*'fast'"):
        door.retrieve(*arrays(door))


@pytest.mark.skipif(metal.available(), reason="the kernels can run here")
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_fused_without_metal_is_an_error_that_says_why(by, monkeypatch):
    if by == "environment":
        monkeypatch.setenv("MLX_PAM_FORM", "fused")
    wish = {"form": "fused"} if by == "argument" else {}
    with pytest.raises(ConfigError, match=r"fused.*needs an Apple GPU.*cpu"):
        retrieval.retrieve(*arrays(retrieval), **wish)
    assert "fused" not in retrieval.FORMS


def question(time: int, dim: int, dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    return [mx.zeros((1, time, 2, 2, dim), dtype) for _ in "qkv"]


@pytest.mark.parametrize("dtype", metal.DTYPES)
@pytest.mark.parametrize("dim", metal.WIDTHS)
@pytest.mark.parametrize("time", [1, 70])
def test_auto_is_fused_where_the_kernels_run(time, dim, dtype, monkeypatch, recwarn):
    monkeypatch.setattr(metal, "available", lambda: True)
    assert retrieval._best_form(*question(time, dim, dtype)) == "fused"
    assert not recwarn


@pytest.mark.skipif(metal.available(), reason="the kernels can run here")
@pytest.mark.parametrize(("time", "form"), [(1, "recurrent"), (70, "chunkwise")])
def test_auto_needs_no_kernels(time, form, recwarn):
    assert retrieval._best_form(*question(time, 64)) == form
    assert not recwarn


@pytest.mark.parametrize(("time", "form"), [(1, "recurrent"), (70, "chunkwise")])
def test_auto_falls_back_with_a_notice_that_says_why(time, form, monkeypatch):
    monkeypatch.setattr(metal, "available", lambda: True)
    with pytest.warns(UserWarning, match=r"fused.*takes d up to 128, got 136"):
        assert retrieval._best_form(*question(time, 136)) == form
    q, k, _ = question(time, 16)
    with pytest.warns(UserWarning, match="fused.*all in one.*float16"):
        assert retrieval._best_form(q, k, q.astype(mx.float16)) == form


def test_widths_that_the_kernels_do_not_take_raise(monkeypatch):
    monkeypatch.setattr(metal, "available", lambda: True)
    inputs, *_ = draw(True, 3, 136, "smooth")
    with pytest.raises(ConfigError, match=r"fused.*takes d up to 128, got 136"):
        retrieval.retrieve(*map(mx.array, inputs), form="fused")


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("dim", [3, 8, 22, 90])
def test_padding_to_a_width_of_the_kernels_changes_no_value_and_no_gradient(dim, is_complex):
    inputs, *cotangents = draw(is_complex, 5, dim, "smooth")
    widths = []

    def recurrent(q, *others):
        widths.append(q.shape[-1])
        return retrieval.recurrent(q, *others)

    def answers(form):
        arrays = [mx.array(x, mx.float32) for x in inputs]
        return mx.vjp(lambda *x: list(form(*x)), arrays, [mx.array(x) for x in cotangents])

    found = answers(partial(metal.padded, recurrent))
    expected = answers(retrieval.recurrent)
    assert widths == [-(-dim // 8) * 8]
    for ours, theirs in zip(found, expected, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            assert x.shape == y.shape
            assert mx.allclose(x, y, rtol=1e-5, atol=1e-5)


def test_no_form_computes_other_than_the_others(monkeypatch):
    """The variable chooses among the forms themselves."""
    inputs = arrays(retrieval)
    plain = {name: retrieval.retrieve(*inputs, form=name)[0] for name in PLAIN}
    for name in PLAIN:
        monkeypatch.setenv("MLX_PAM_FORM", name)
        assert np.array_equal(np.array(retrieval.retrieve(*inputs)[0]), np.array(plain[name]))
