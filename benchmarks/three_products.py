"""Whether a complex product from three real ones pays: Gauss's scheme beside the block product.

    python -m mlx_pam.benchmarks.three_products

A quarter fewer operations, for sums before and after the products, which `torch.compile` fuses.
Forward and gradients of the maps of the 100m PAM, PyTorch, taking turns; a line per map and type,
with the times' ratio and both errors against float64, goes to `results/three_products.jsonl`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from mlx_pam.benchmarks import rows
from mlx_pam.benchmarks.machine import describe
from mlx_pam.torch.ops.complex import block_weight, three_products

RESULTS = rows.RESULTS / "three_products.jsonl"
ROWS, ROUNDS = 2048, 15
MAPS = {"up_gate": (384, 2304), "down": (1152, 384), "qkv": (384, 1152), "out": (384, 384)}


def block(x: Tensor, weight: Tensor) -> Tensor:
    """x `[N, 1, 2, n]`, weight `[2, m, n]` -> `[N, 1, 2, m]`."""
    y = x.flatten(1) @ block_weight(weight).T
    return y.view(len(x), 1, 2, -1)


def with_gradients(function: Callable, x: Tensor, weight: Tensor, dy: Tensor) -> list[Tensor]:
    y = function(x, weight)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


def seconds(*arguments) -> float:
    start = time.perf_counter()
    with_gradients(*arguments)
    return time.perf_counter() - start


def error(function: Callable, *arguments: Tensor) -> float:
    """Of y, root mean square, relative to that of y."""
    exact = block(*(x.double() for x in arguments[:2]))
    difference = function(*arguments[:2]).double() - exact
    return (difference.norm() / exact.norm()).item()


def main() -> None:
    functions = {"block": torch.compile(block), "three": torch.compile(three_products)}
    for dtype in (torch.float32, torch.bfloat16):
        for name, (n, m) in MAPS.items():
            shapes = ((ROWS, 1, 2, n), (2, m, n), (ROWS, 1, 2, m))
            x, weight, dy = (torch.randn(shape).to(dtype) for shape in shapes)
            arguments = (x.requires_grad_(), weight.requires_grad_(), dy)
            row = {"map": name, "n": n, "m": m, "rows": ROWS, "dtype": str(dtype)}
            for form, function in functions.items():
                with_gradients(function, *arguments)
                row[f"error_{form}"] = error(function, *arguments)
            turns = [
                {form: seconds(function, *arguments) for form, function in functions.items()}
                for _ in range(ROUNDS)
            ]
            ratios = sorted(turn["three"] / turn["block"] for turn in turns)
            row["time_of_three_over_block"] = statistics.median(ratios)
            row |= {"min": ratios[0], "max": ratios[-1]}
            print(row)
            rows.add(RESULTS, [row | describe()])


if __name__ == "__main__":
    main()
