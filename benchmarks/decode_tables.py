"""Kernels of a decoded token on an Apple GPU, and tokens/s by the cost MODEL: nothing is measured.

python -m mlx_pam.benchmarks.decode_tables --chip m4-max
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from mlx_pam.backend import get_backend
from mlx_pam.benchmarks import chips, cost_model, dispatches
from mlx_pam.benchmarks.cost_tables import NUMBERS
from mlx_pam.config import PRESETS, MemoryConfig
from mlx_pam.decoder_state import state_shapes
from mlx_pam.models import decode
from mlx_pam.ops import metal
from mlx_pam.ops.metal import launch

STEPS: dict[str, Callable] = {"layers": decode.in_layers, "kernels": decode.in_kernels}
"""The layers as they read any text, the operator in one kernel; or everything in kernels."""


class Kernels(NamedTuple):
    """How many a token starts."""

    layer: int
    """In each layer."""
    rest: int
    """Before the first layer and after the last."""

    def of(self, config: MemoryConfig) -> int:
        """In all layers and around them."""
        return config.num_layers * self.layer + self.rest


@contextlib.contextmanager
def as_on_metal() -> Iterator[None]:
    """MLX's graph as it is on a Mac: what is one kernel there is one node, which cannot run."""

    def node(inputs: Sequence, shapes: Sequence[Sequence[int]]) -> list[mx.array]:
        outputs = [mx.array(np.zeros(shape, np.float32)) for shape in shapes]
        return mx.depends(outputs, [x for x in inputs if isinstance(x, mx.array)])

    def metal_kernel(**_) -> Callable[..., list[mx.array]]:
        return lambda *, inputs, output_shapes, **_: node(inputs, output_shapes)

    launch.build.cache_clear()
    with (
        patch.object(metal, "available", lambda: True),
        patch.object(mx.fast, "metal_kernel", metal_kernel),
        patch.object(mx.fast, "rms_norm", lambda x, weight, eps: node([x, weight], [x.shape])[0]),
    ):
        yield
    launch.build.cache_clear()


def count(config: MemoryConfig, step: str) -> Kernels:
    """Kernels of a token of one text, from the graphs of two depths; small widths serve."""
    two, three = (_count(dataclasses.replace(config, num_layers=n), step) for n in (2, 3))
    return Kernels(three - two, two - 2 * (three - two))


def _count(config: MemoryConfig, step: str) -> int:
    small = dataclasses.replace(config, dim=64, num_heads=2, head_dim=16, vocab_size=64)
    model = get_backend("mlx").build(small)
    memories = [mx.zeros(shape) for shape in state_shapes(small, 1, 1).values()]

    def token(ids: mx.array, phases: mx.array, *memories: mx.array) -> list[mx.array]:
        logits, after = STEPS[step](model, ids, phases, list(memories))
        return [logits, *after]

    with as_on_metal():
        ids, phases = mx.zeros((1, 1), mx.int32), model.phases(np.zeros((1, 1)))
        return dispatches.count(token, ids, phases, *memories)


def table(rates: cost_model.Rates) -> Table:
    """PAM at every scale, its layers as they are and in kernels."""
    table = Table(title="MODEL: a decoded token of one text", box=box.SIMPLE_HEAD)
    for name in ("scale", "step", "kernels a layer", "kernels", *NUMBERS):
        side = "left" if name in ("scale", "step") else "right"
        table.add_column(f"{name}, tokens/s" if name in NUMBERS else name, justify=side)
    presets = PRESETS["pam"]
    steps = {step: count(presets["5m"], step) for step in STEPS}
    for scale, config in presets.items():
        for step, kernels in steps.items():
            total = kernels.of(config)
            parts = [cost_model.decode(config, 0, total, number) for number in NUMBERS.values()]
            speeds = [f"{1 / cost_model.seconds(part, rates):,.0f}" for part in parts]
            table.add_row(scale, step, str(kernels.layer), str(total), *speeds)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chip", default="m4-max", choices=chips.BY_WORD, metavar="CHIP")
    rates = cost_model.published(chips.BY_WORD[parser.parse_args().chip])
    console = Console()
    console.print(f"MODEL, {rates.name}: predictions, not measurements", highlight=False)
    console.print(table(rates))


if __name__ == "__main__":
    main()
