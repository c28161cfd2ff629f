"""The baseline: a pre-norm transformer with rotary positions, SwiGLU and a tied head."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mlx_pam.config import TransformerConfig
from mlx_pam.phases import paired_rotation
from mlx_pam.torch.layers.attention import Attention, Cache, Position, causal_attention
from mlx_pam.torch.layers.real import RealEmbedding, RealNorm, SwiGLU
from mlx_pam.torch.models.recompute import recomputed


class TransformerBlock(nn.Module):
    """z + Attention(norm(z)), then z + SwiGLU(norm(z))."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attention_norm = RealNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.unit_norm = RealNorm(config.dim, config.norm_eps)
        self.unit = SwiGLU(config.dim, config.hidden_dim)

    def forward(
        self,
        z: Tensor,
        rotation: Tensor,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z after the block, `[B, T, D]`, and the tokens' keys and values, `[B, H, T, d]`.

        rotation: as in `Position`. cache: of the tokens before, into which these are written;
        without one, the text begins here.
        """
        q, k, v = self.attention.project(self.attention_norm(z), rotation)
        y = causal_attention(q, k, v) if cache is None else cache.attend(q, k, v)
        z = z + self.attention.merge(y)
        return z + self.unit(self.unit_norm(z)), k, v


class TransformerLM(nn.Module):
    """logits = <E, norm(z)>, z the residual stream: `[B, T]` token ids -> `[B, T, V]`."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embedding = RealEmbedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_layers))
        self.head_norm = RealNorm(config.dim, config.norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `[B, T, V]` of a text from its beginning."""
        hidden, _ = self.hidden(ids, self.phases(np.arange(ids.shape[1])))
        x, table = self.embedding.head(hidden)
        return x @ table.T

    def phases(self, positions: np.ndarray) -> Position:
        """The rotation at positions `[..., T]`, and the positions, which the caches go by."""
        rotation = paired_rotation(positions, self.config.head_dim, self.config.rotary_base)
        device = self.embedding.weight.device
        places = torch.from_numpy(np.asarray(positions, np.int64))
        first, last = int(np.min(positions)), int(np.max(positions))
        return Position(torch.from_numpy(rotation).to(device), places.to(device), first, last)

    def hidden(
        self,
        ids: Tensor,
        phases: Position,
        memories: list[Tensor] | None = None,
        mask: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """What the tied head reads, `[B, T, D]`, and each layer's keys and values, in one list.

        memories: keys and values `[B, H, C, d]` of each layer, with room for the tokens of ids,
        which are written into them, in place; the same tensors are returned.
        mask: `[B, T]`, False where a token is padding. It asks for nothing here: padding comes last
        in a row, where no token looks, and the row's next token takes its slot.
        recompute: the blocks are `recomputed` in the backward pass.
        """
        z, after = self.embedding(ids), []
        caches = _caches(memories, phases) if memories else [None] * len(self.layers)
        for layer, cache in zip(self.layers, caches, strict=True):
            block = recomputed(layer) if recompute else layer
            z, *keys_and_values = block(z, phases.rotation, cache)
            after.extend(keys_and_values)
        return self.head_norm(z), memories or after


def _caches(memories: list[Tensor], position: Position) -> list[Cache]:
    """Each layer's keys and values up to the last of the tokens to come, which are written there.

    A token sees the slots up to its own; where there is one place only, these are all.
    """
    places, filled = position.places, position.last + 1
    places = places.reshape(-1, places.shape[-1])  # [B or 1, T]
    visible = None
    if position.first < position.last:
        slots = torch.arange(filled, device=places.device)
        hides = slots > places[:, None, :, None]  # [B or 1, 1, T, N]
        visible = memories[0].new_zeros(hides.shape).masked_fill_(hides, -torch.inf)
    views = [memory[:, :, :filled] for memory in memories]
    return [Cache(k, v, places, visible) for k, v in zip(views[::2], views[1::2], strict=True)]
