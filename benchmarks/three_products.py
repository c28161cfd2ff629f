"""Whether a complex product from three real ones pays: Gauss's scheme beside the block product.

    python -m mlx_pam.benchmarks.three_products

y_re = A - B, y_im = C - A - B with A = W_re x_re, B = W_im x_im, C = (W_re + W_im)(x_re + x_im):
a quarter fewer operations than the one product with [[W_re, -W_im], [W_im, W_re]], for sums before
and after it. The maps of the 100m PAM, PyTorch, taking turns; a line per map and type goes to
`benchmarks/results/three_products.jsonl`.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from mlx_pam.benchmarks import rows
from mlx_pam.benchmarks.machine import describe
from mlx_pam.torch.ops.complex import block_weight

RESULTS = rows.RESULTS / "three_products.jsonl"
ROWS, ROUNDS = 2048, 15
MAPS = {"up_gate": (384, 2304), "down": (1152, 384), "qkv": (384, 1152), "out": (384, 384)}


def block(x: Tensor, weight: Tensor) -> Tensor:
    """x `[N, 2, n]`, weight `[2, m, n]` -> `[N, 2m]`."""
    return x.flatten(1) @ block_weight(weight).T


def gauss(x: Tensor, weight: Tensor) -> Tensor:
    (w_re, w_im), (re, im) = weight, x.unbind(1)
    a, b, c = re @ w_re.T, im @ w_im.T, (re + im) @ (w_re + w_im).T
    return torch.cat([a - b, c - a - b], dim=1)


def seconds(function, *arguments: Tensor) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main() -> None:
    fused = torch.compile(gauss, dynamic=False)  # its sums in one pass each
    for dtype in (torch.float32, torch.bfloat16):
        for name, (n, m) in MAPS.items():
            x, weight = torch.randn(ROWS, 2, n, dtype=dtype), torch.randn(2, m, n, dtype=dtype)
            for function in (block, fused):
                function(x, weight)
            turns = [(seconds(block, x, weight), seconds(fused, x, weight)) for _ in range(ROUNDS)]
            ratios = sorted(three / four for four, three in turns)
            row = {"map": name, "n": n, "m": m, "rows": ROWS, "dtype": str(dtype)}
            row["time_of_three_over_block"] = statistics.median(ratios)
            row |= {"min": ratios[0], "max": ratios[-1], "torch": torch.__version__}
            print(row)
            rows.add(RESULTS, [row | describe()])


if __name__ == "__main__":
    main()
