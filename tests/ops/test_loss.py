"""The sliced loss is the plain cross-entropy, and holds the logits of one slice at a time."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.ops import loss as sliced

WIDTH, VOCABULARY = 8, 50


def plain(x, table, targets):
    logits = x @ table.T
    return (
        mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, targets[:, None], -1)[:, 0]
    ).sum()


def arrays(rows: int, vocabulary: int = VOCABULARY):
    random = np.random.default_rng(rows)
    x, table = random.normal(size=(rows, WIDTH)), random.normal(size=(vocabulary, WIDTH))
    targets = random.integers(vocabulary, size=rows)
    targets[-1] = targets[0]  # a token that stands twice in a slice is added up twice
    return mx.array(x, mx.float32), mx.array(table, mx.float32), mx.array(targets)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize("compiled", [False, True])
def test_sliced_loss_is_the_plain_one(rows, compiled, monkeypatch):
    monkeypatch.setattr(sliced, "SLICE_NUMBERS", 8 * VOCABULARY)
    x, table, targets = arrays(rows)

    def loss(x, table):
        return 0.1 * sliced.summed_loss(x, table, targets)[0]

    function = mx.value_and_grad(loss, argnums=(0, 1))
    value, gradients = (mx.compile(function) if compiled else function)(x, table)
    expected, slopes = mx.value_and_grad(lambda x, t: 0.1 * plain(x, t, targets), argnums=(0, 1))(
        x, table
    )
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert sliced.token_losses(x, table, targets).sum().item() == pytest.approx(
        10 * expected.item(), rel=1e-6
    )
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(np.array(gradient), np.array(slope), atol=1e-6)


def test_large_logits_neither_overflow_nor_lose_the_loss():
    x, table, targets = arrays(9)
    value = sliced.summed_loss(300 * x, table, targets)[0].item()
    assert value == pytest.approx(plain(300 * x, table, targets).item(), rel=1e-5)


def test_logits_of_one_slice_are_alive_at_a_time(monkeypatch):
    """Sixteen slices of 1 MB each are made; less than half of them may be held at once."""
    rows, vocabulary = 1024, 4096
    monkeypatch.setattr(sliced, "SLICE_NUMBERS", rows * vocabulary // 16)
    x, table, targets = arrays(rows, vocabulary)
    mx.eval(x, table, targets)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(
        mx.value_and_grad(lambda x, t: sliced.summed_loss(x, t, targets)[0], argnums=(0, 1))(
            x, table
        )
    )
    assert mx.get_peak_memory() - before < rows * vocabulary * 4 / 2
