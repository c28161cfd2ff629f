"""Gradient checkpointing: the inside of a block is not kept but computed anew when it is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import nn
from torch.utils.checkpoint import checkpoint


def recomputed(block: nn.Module) -> Callable:
    """The block, of which only the inputs are kept for the backward pass, which computes it again.

    Values and gradients are the same to the bit; nothing in a block is random.
    """
    return functools.partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
