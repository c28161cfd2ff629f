"""Gradient checkpointing: the inside of a block is not kept but computed anew when it is needed."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn


def recomputed(block: nn.Module) -> Callable:
    """The block, of which only the inputs are kept for the backward pass, which computes it again.

    Its weights are inputs too: `mx.checkpoint` gives no gradient to what a function merely holds.
    """

    def run(weights, *inputs):
        kept = block.trainable_parameters()
        block.update(weights)
        outputs = block(*inputs)
        block.update(kept)  # so that the block never holds the placeholders of a trace
        return outputs

    return lambda *inputs: mx.checkpoint(run)(block.trainable_parameters(), *inputs)
