"""The language model: embedding, blocks of gated unit and memory, tied head (section II)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_pam.config import MemoryConfig, Part
from mlx_pam.layers.field import Field, field_of
from mlx_pam.layers.memory import Memory
from mlx_pam.layers.window import WindowAttention
from mlx_pam.models.recompute import recomputed
from mlx_pam.phases import rotary_phases


@dataclass
class State:
    """All that a model remembers of a text, of constant size, and how many tokens it has read."""

    memories: list[mx.array]
    """The arrays of `decoder_state.state_shapes`: a memory per block, `[B, H, (2,) d, d]`, and with
    some variants the newest tokens; in float32."""
    positions: np.ndarray
    """Tokens read by each row, `[B]`; on the host, where rotary angles are exact at any length."""


class Block(nn.Module):
    """z + alpha_cgu Unit(norm(z)), then z + alpha_pam Memory(norm(z))   (eqs. 2 and 3).

    In some variants a block has but one of the two, or attention to a window after its memory.
    """

    def __init__(self, config: MemoryConfig, field: Field, parts: Sequence[Part]):
        super().__init__()
        norm = partial(field.norm, config.dim, config.norm_eps)
        self.parts, self.arrays = tuple(parts), 0  # arrays of the state that it carries
        if "unit" in parts:
            self.unit_norm = norm()
            self.unit = field.gated_unit(config.dim, config.hidden_dim)
            self.alpha_cgu = mx.array(config.alpha_cgu_init)
        if "memory" in parts:
            self.memory_norm = norm()
            self.memory = Memory(config, field)
            self.alpha_pam = mx.array(config.alpha_pam_init)
            self.arrays += self.memory.arrays
        if "attention" in parts:
            self.attention_norm = norm()
            self.attention = WindowAttention(config, field)
            self.alpha_attention = mx.array(config.alpha_attention_init)
            self.arrays += self.attention.arrays

    def __call__(
        self, z, phases, state=None, mask=None, form="auto", resets=None
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """z after the block, and the block's arrays of the state, continued."""
        after = ()
        if "unit" in self.parts:
            z = z + self.alpha_cgu * self.unit(self.unit_norm(z))
        if "memory" in self.parts:
            own = state and state[: self.memory.arrays]
            y, after = self.memory(self.memory_norm(z), phases, own, mask, form, resets)
            z = z + self.alpha_pam * y
        if "attention" in self.parts:
            own = state and state[self.memory.arrays :]
            y, window = self.attention(self.attention_norm(z), phases, own, mask, resets)
            z, after = z + self.alpha_attention * y, (*after, *window)
        return z, after


class MemoryLM(nn.Module):
    """PAM or SAM, by the field of its configuration.

    logits = Re<E, norm(W z)>, z the residual stream: `[B, T]` token ids -> `[B, T, V]`.
    """

    def __init__(self, config: MemoryConfig):
        super().__init__()
        self.config, self.field = config, field_of(config)
        self.embedding = self.field.embedding(config.vocab_size, config.dim)
        self.embedding_norm = self.field.norm(config.dim, config.norm_eps)
        self.layers = [Block(config, self.field, parts) for parts in config.blocks]
        self.head = self.field.linear(config.dim, config.dim)
        self.head_norm = self.field.norm(config.dim, config.norm_eps)

    def __call__(self, ids: mx.array) -> mx.array:
        """Logits `[B, T, V]` of a text from its beginning."""
        return self.forward(ids)[0]

    def forward(
        self,
        ids: mx.array,
        state: State | None = None,
        mask: mx.array | None = None,
        form: str = "auto",
    ) -> tuple[mx.array, State]:
        """Logits `[B, T, V]` and the state after the text, which continues `state`.

        mask: `[B, T]`, False where a token is padding; padding comes last in a row and leaves the
        state as it was.
        """
        positions = np.zeros(ids.shape[0], np.int64) if state is None else state.positions
        phases = self.phases(positions[:, None] + np.arange(ids.shape[1]))
        hidden, memories = self.hidden(ids, phases, state and state.memories, mask, form)
        read = ids.shape[1] if mask is None else np.array(mask.sum(axis=1))
        x, table = self.embedding.head(hidden)
        return x @ table.T, State(memories, positions + read)

    def phases(self, positions: np.ndarray) -> mx.array:
        """Rotary phases at positions `[..., T]`: `[..., T, 2, width]`."""
        width = self.field.rotary_width(self.config.head_dim)
        return mx.array(rotary_phases(positions, width, self.config.rotary_base))

    def hidden(
        self,
        ids: mx.array,
        phases: mx.array,
        memories: list[mx.array] | None = None,
        mask: mx.array | None = None,
        form: str = "auto",
        recompute: bool = False,
        deterministic: bool = False,
    ) -> tuple[mx.array, list[mx.array]]:
        """What the tied head reads, `[B, T, (2,) D]`, and the arrays of the state after the text.

        recompute: the blocks are `recomputed` in the backward pass.
        deterministic: the gradient of the lookup is summed in a fixed order.
        """
        z = self.embedding_norm(self.embedding(ids, deterministic))
        resets = self.resets(ids)
        before, after = iter(memories or ()), []
        for layer in self.layers:
            block = recomputed(layer) if recompute else layer
            state = tuple(islice(before, layer.arrays)) or None
            z, state = block(z, phases, state, mask, form, resets)
            after.extend(state)
        return self.head_norm(self.head(z)), after

    def resets(self, ids: mx.array) -> mx.array | None:
        """Where a token makes the memories forget, `[B, T]`, if the model has such a token."""
        token = self.config.reset_token
        return None if token is None else ids == token
