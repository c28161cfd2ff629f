"""A complex map by three real products is the map by its block weight, gradients too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import relative_error, split
from torch.utils.flop_counter import FlopCounterMode

from mlx_pam.torch.ops import complex as cx

N, M, ROWS = cx.THREE_PRODUCTS_FROM, 2 * cx.THREE_PRODUCTS_FROM, 12


def draw(*shape: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def tensor(z: np.ndarray, axis: int = -2) -> torch.Tensor:
    return torch.from_numpy(split(z, axis=axis)).requires_grad_()


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside `torch.compile`, where the scheme is chosen, without its minutes."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def test_three_products_are_the_complex_matrix_product() -> None:
    x, w, dy = draw(ROWS, N, seed=0), draw(M, N, seed=1), draw(ROWS, M, seed=2)
    planar, weight = tensor(x), tensor(w, axis=-3)
    y = cx.three_products(planar[:, None], weight)[:, 0]
    y.backward(tensor(dy))
    assert relative_error(y.detach().numpy(), split(x @ w.T)) < 1e-12
    assert relative_error(planar.grad.numpy(), split(dy @ w.conj())) < 1e-12
    assert relative_error(weight.grad.numpy(), split(dy.T @ x.conj(), axis=-3)) < 1e-12


@pytest.mark.parametrize("groups_in", [1, 4])
@pytest.mark.parametrize("groups_out", [1, 6])
def test_a_large_map_falls_into_the_same_groups(groups_in, groups_out, compiling) -> None:
    m = 6 * 32
    shape = (ROWS, 2, N) if groups_in == 1 else (ROWS, groups_in, 2, N // groups_in)
    random = np.random.default_rng(3)
    x = torch.from_numpy(random.normal(size=shape))
    weight = torch.from_numpy(random.normal(size=(2, m, N)))
    block = cx.block_weight(weight, groups_out, groups_in)
    with FlopCounterMode(display=False) as operations:
        y = cx.linear(x, weight, groups_out, groups_in)
    assert operations.get_total_flops() == 3 * 2 * ROWS * m * N
    expected = (x.flatten(1) @ block.T).view(y.shape)
    assert relative_error(y.numpy(), expected.numpy()) < 1e-12


def test_a_small_map_is_one_product(compiling) -> None:
    x, weight = torch.ones(ROWS, 2, N // 2), torch.ones(2, M, N // 2)
    with FlopCounterMode(display=False) as operations:
        cx.linear(x, weight)
    assert operations.get_total_flops() == 4 * 2 * ROWS * M * (N // 2)
