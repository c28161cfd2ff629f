"""The baseline: a pre-norm transformer with rotary positions, SwiGLU and a tied head."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_pam.config import TransformerConfig
from mlx_pam.layers.attention import Attention, Cache, Position
from mlx_pam.layers.real import RealEmbedding, RealNorm, SwiGLU
from mlx_pam.models.recompute import recomputed
from mlx_pam.phases import paired_rotation


class TransformerBlock(nn.Module):
    """z + Attention(norm(z)), then z + SwiGLU(norm(z))."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attention_norm = RealNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.unit_norm = RealNorm(config.dim, config.norm_eps)
        self.unit = SwiGLU(config.dim, config.hidden_dim)

    def __call__(
        self,
        z: mx.array,
        position: Position,
        cache: Cache | None = None,
        visible: mx.array | str = "causal",
    ) -> tuple[mx.array, Cache]:
        y, cache = self.attention(self.attention_norm(z), position, cache, visible)
        z = z + y
        return z + self.unit(self.unit_norm(z)), cache


class TransformerLM(nn.Module):
    """logits = <E, norm(z)>, z the residual stream: `[B, T]` token ids -> `[B, T, V]`."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embedding = RealEmbedding(config.vocab_size, config.dim)
        self.layers = [TransformerBlock(config) for _ in range(config.num_layers)]
        self.head_norm = RealNorm(config.dim, config.norm_eps)

    def __call__(self, ids: mx.array) -> mx.array:
        """Logits `[B, T, V]` of a text from its beginning."""
        hidden, _ = self.hidden(ids, self.phases(np.arange(ids.shape[1])))
        x, table = self.embedding.head(hidden)
        return x @ table.T

    def phases(self, positions: np.ndarray) -> Position:
        """The rotation at positions `[..., T]`, and the positions, which the caches go by."""
        rotation = paired_rotation(positions, self.config.head_dim, self.config.rotary_base)
        return mx.array(rotation), mx.array(np.asarray(positions, np.int32))

    def hidden(
        self,
        ids: mx.array,
        phases: Position,
        memories: list[mx.array] | None = None,
        mask: mx.array | None = None,
        recompute: bool = False,
        deterministic: bool = False,
    ) -> tuple[mx.array, list[mx.array]]:
        """What the tied head reads, `[B, T, D]`, and each layer's keys and values, in one list.

        memories: keys and values `[B, H, C, d]` of each layer, with room for the tokens of ids.
        mask: `[B, T]`, False where a token is padding. It asks for nothing here: padding comes last
        in a row, where no token looks, and the row's next token takes its slot.
        recompute: the blocks are `recomputed` in the backward pass.
        deterministic: the gradient of the lookup is summed in a fixed order.
        """
        z, after = self.embedding(ids, deterministic), []
        caches, visible = [None] * len(self.layers), "causal"
        if memories:
            caches = list(zip(memories[::2], memories[1::2], strict=True))
            slots = mx.arange(memories[0].shape[2])
            visible = slots <= phases[1].reshape(-1, 1, ids.shape[1], 1)  # [B or 1, 1, T, C]
        for layer, cache in zip(self.layers, caches, strict=True):
            block = recomputed(layer) if recompute else layer
            z, cache = block(z, phases, cache, visible)
            after.extend(cache)
        return self.head_norm(z), after
