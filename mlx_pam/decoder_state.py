"""What a decoder remembers of its texts: names and shapes of the arrays, for either backend."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mlx_pam.config import MemoryConfig, ModelConfig
from mlx_pam.errors import CheckpointError

ROOM_STEP = 256  # tokens that a cache has room for grow by so many, or by an eighth


def state_shapes(config: ModelConfig, batch: int, tokens: int) -> dict[str, tuple[int, ...]]:
    """Every array by name, in the order in which a model's `hidden` takes and returns them.

    A memory has one size, whatever the number of tokens; a transformer keeps the keys and values of
    them all.
    """
    c = config
    if isinstance(c, MemoryConfig):
        shape = (batch, c.num_heads, *c.planes, c.head_dim, c.head_dim)
        return {f"layers.{i}.memory": shape for i in range(c.num_layers)}
    shape = (batch, c.num_heads, tokens, c.head_dim)
    return {f"layers.{i}.{kind}": shape for i in range(c.num_layers) for kind in ("keys", "values")}


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
