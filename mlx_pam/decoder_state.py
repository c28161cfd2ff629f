"""What a decoder remembers of its texts: names and shapes of the arrays, for either backend."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mlx_pam.config import MemoryConfig, ModelConfig
from mlx_pam.errors import CheckpointError

ROOM_STEP = 256  # tokens that a cache has room for grow by so many, or by an eighth


def state_shapes(config: ModelConfig, batch: int, tokens: int) -> dict[str, tuple[int, ...]]:
    """Every array by name, in the order in which a model's `hidden` takes and returns them.

    What a memory keeps has one size, whatever the number of tokens; a transformer keeps the keys
    and values of them all.
    """
    if isinstance(config, MemoryConfig):
        return _memory_shapes(config, batch)
    shape = (batch, config.num_heads, tokens, config.head_dim)
    kinds = ("keys", "values")
    return {f"layers.{i}.{kind}": shape for i in range(config.num_layers) for kind in kinds}


def _memory_shapes(c: MemoryConfig, batch: int) -> dict[str, tuple[int, ...]]:
    """The memory S; the tokens before the next one, whose q, k, v the convolution looks back at;
    keys and values of a window, and which of its places are filled.
    """
    of_head, shapes = (*c.planes, c.head_dim), {}
    for i, parts in enumerate(c.blocks):
        if "memory" in parts:
            shapes[f"layers.{i}.memory"] = (batch, c.num_heads, *of_head, c.head_dim)
            if c.conv_width > 1:
                shapes[f"layers.{i}.recent"] = (batch, c.conv_width - 1, 3 * c.num_heads, *of_head)
        if "attention" in parts:
            window = (batch, c.attention_window - 1)
            for kind in ("keys", "values"):
                shapes[f"layers.{i}.{kind}"] = (*window, c.num_heads, *of_head)
            shapes[f"layers.{i}.filled"] = window
    return shapes


def room(tokens: int) -> int:
    """Tokens to make room for when so many must fit: few sizes, and little of them empty."""
    step = max(ROOM_STEP, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step


def checked_state(config: ModelConfig, state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arrays of a saved state, in order; `CheckpointError` unless they are this model's."""
    positions = state["positions"]
    shapes = state_shapes(config, len(positions), int(positions.max(initial=0)))
    unknown = sorted(set(state) - {*shapes, "positions"})
    if unknown:
        raise CheckpointError(f"the state holds {unknown[0]}: it is another model's")
    for name, shape in shapes.items():
        if name not in state or state[name].shape != shape:
            raise CheckpointError(f"the state must hold {name} of {shape}: it is another model's")
    return [np.array(state[name], np.float32) for name in shapes]
