"""What a decoder remembers: constant for a memory, growing in a few steps for a transformer."""

from __future__ import annotations

import numpy as np
import pytest

from mlx_pam.config import PRESETS
from mlx_pam.decoder_state import ROOM_STEP, checked_state, room, state_shapes
from mlx_pam.errors import CheckpointError


def numbers(family: str, scale: str, tokens: int) -> int:
    return sum(int(np.prod(s)) for s in state_shapes(PRESETS[family][scale], 1, tokens).values())


def test_a_memory_has_one_size_and_a_cache_a_size_for_each_token():
    pam, c = PRESETS["pam"]["100m"], PRESETS["transformer"]["100m"]
    for tokens in (1, 2048):
        states = pam.num_layers * pam.num_heads * 2 * pam.head_dim**2
        assert numbers("pam", "100m", tokens) == states
        caches = c.num_layers * 2 * c.num_heads * c.head_dim * tokens
        assert numbers("transformer", "100m", tokens) == caches


def test_room_is_enough_little_of_it_is_empty_and_it_changes_seldom():
    rooms = [room(tokens) for tokens in range(1, 100_001)]
    for tokens, found in enumerate(rooms, start=1):
        assert tokens <= found < tokens + max(ROOM_STEP, tokens / 8 + 1)
    assert rooms == sorted(rooms)
    assert len(set(rooms)) < 70


@pytest.mark.parametrize("change", ["layers.1.values", "layers.9.keys"])
def test_a_state_that_lacks_an_array_or_has_another_is_refused_by_its_name(change):
    config = PRESETS["transformer"]["5m"]
    state = {name: np.zeros(shape) for name, shape in state_shapes(config, 2, 3).items()}
    state["positions"] = np.array([3, 1])
    assert len(checked_state(config, state)) == 2 * config.num_layers
    for broken in (
        {name: array for name, array in state.items() if name != change},
        state | {f"{change}.more": np.zeros(3)},
        state | {change: np.zeros((2, 3, 2, 32))},
    ):
        with pytest.raises(CheckpointError, match=f"{change}.*another model's"):
            checked_state(config, broken)
