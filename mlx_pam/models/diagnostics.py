"""For each block of a model that reads a text, a few numbers that explain a run.

B texts   T tokens   D width   H heads   ED hidden width; a complex array has an axis of 2 before
its last one.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from mlx_pam.layers.attention import Position
from mlx_pam.layers.memory import Memory
from mlx_pam.models.memory_lm import Block, MemoryLM
from mlx_pam.models.transformer_lm import TransformerLM


def activations(
    model: MemoryLM | TransformerLM, ids: mx.array, phases: mx.array | Position
) -> dict[str, mx.array]:
    """Means over the tokens of texts `[B, T]`, float32, by name: `layers.{i}.{statistic}`.

    rms: sqrt(mean |z|^2) over channels as well, z the residual stream after the block.
    active: share of the hidden units that modReLU or ReLU lets through, |z| + b > 0 or z + b > 0;
        a SwiGLU has none.
    small_gate: share of the gate's complex numbers g with |g| < 0.1 sqrt(mean |g|^2), mean over
        the hidden channels as well; near 0 the slope of the phase g/|g| is large.
    decay: gamma of eq. 5, over heads as well, 0 to 1; what a reset token forgets is not in it.
    protect: p of eq. 5, over heads or channels as well, 0 to 1; without a gate there is none.
    """
    blocks = _memory_blocks if isinstance(model, MemoryLM) else _transformer_blocks
    return {
        f"layers.{i}.{name}": value
        for i, block in enumerate(blocks(model, ids, phases))
        for name, value in block.items()
    }


def _transformer_blocks(
    model: TransformerLM, ids: mx.array, phases: Position
) -> Iterator[dict[str, mx.array]]:
    z = model.embedding(ids)
    for layer in model.layers:
        z, _ = layer(z, phases)
        yield {"rms": _rms(z)}


def _memory_blocks(
    model: MemoryLM, ids: mx.array, phases: mx.array
) -> Iterator[dict[str, mx.array]]:
    z, resets = model.embedding_norm(model.embedding(ids)), model.resets(ids)
    for layer in model.layers:
        z, block = _block(layer, z, phases, resets)
        yield block | {"rms": _rms(z)}


def _block(
    layer: Block, z: mx.array, phases: mx.array, resets: mx.array | None
) -> tuple[mx.array, dict[str, mx.array]]:
    """z after a block, part by part, and what its parts tell."""
    found = {}
    if "unit" in layer.parts:
        x = layer.unit_norm(z)
        found |= layer.unit.statistics(x)
        z = z + layer.alpha_cgu * layer.unit(x)
    if "memory" in layer.parts:
        x = layer.memory_norm(z)
        found |= _gates(layer.memory, x)
        z = z + layer.alpha_pam * layer.memory(x, phases, resets=resets)[0]
    if "attention" in layer.parts:
        x = layer.attention_norm(z)
        z = z + layer.alpha_attention * layer.attention(x, phases, resets=resets)[0]
    return z, found


def _gates(memory: Memory, x: mx.array) -> dict[str, mx.array]:
    log_decay, write = memory.gates(x)  # [B, T, H], [B, T, H, 1 or d]
    found = {"decay": mx.exp(log_decay).mean()}
    return found if memory.config.protect == "none" else found | {"protect": 1 - write.mean()}


def _rms(z: mx.array) -> mx.array:
    channels = z.shape[0] * z.shape[1] * z.shape[-1]
    return mx.sqrt(z.astype(mx.float32).square().sum() / channels)
