"""One token of each text through a model: in five kernels a layer where Metal runs, or as any text.

B texts   V vocabulary   H heads   d head width; a complex array has an axis of 2 before its last.
"""

from __future__ import annotations

import dataclasses

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_pam.config import MemoryConfig, ModelConfig
from mlx_pam.models.memory_lm import Block, MemoryLM
from mlx_pam.models.transformer_lm import TransformerLM
from mlx_pam.ops import metal
from mlx_pam.ops.metal import decode
from mlx_pam.ops.retrieval import wanted_form

# Settings that the kernels follow whatever they say, and those that they follow in these words.
FOLLOWED = {
    "dim", "num_layers", "num_heads", "head_dim", "vocab_size", "rotary_base", "norm_eps", "expand",
    "alpha_cgu_init", "alpha_pam_init", "reset_token",
}  # fmt: skip
CHOICES = {"protect": ("head", "channel"), "gated_unit": ("relu", "swiglu")}


def next_logits(
    model: MemoryLM | TransformerLM, ids: mx.array, phases: mx.array, memories: list[mx.array]
) -> tuple[mx.array, list[mx.array]]:
    """Logits after one more token of each text, `[B, V]` in float32, and the memories after it.

    ids: `[B, 1]`; phases: `[B, 1, 2, width]`; memories: what `hidden` returned.
    """
    step = in_kernels if runs(model, texts=ids.shape[0]) else in_layers
    return step(model, ids, phases, memories)


def in_layers(
    model: MemoryLM | TransformerLM, ids: mx.array, phases: mx.array, memories: list[mx.array]
) -> tuple[mx.array, list[mx.array]]:
    """`next_logits` by the layers, which read a token as any text."""
    hidden, memories = model.hidden(ids, phases, memories)
    x, table = model.embedding.head(hidden[:, -1])
    return (x @ table.T).astype(mx.float32), memories


def runs(model: MemoryLM | TransformerLM, texts: int) -> bool:
    """Whether `in_kernels` takes this model and so many texts here, and no other form is wanted."""
    return (
        metal.available()
        and wanted_form() in ("auto", "fused")
        and texts <= decode.MOST_TEXTS
        and supported(model.config)
        and _has_one_type(model)
    )


def supported(config: ModelConfig) -> bool:
    """Whether the kernels compute a configuration.

    A setting that they do not know must have its default, with which the network is theirs.
    """
    return (
        isinstance(config, MemoryConfig)
        and config.head_dim in metal.WIDTHS
        and config.dim >= decode.LEAST_WIDTH
        and all(
            getattr(config, field.name) in CHOICES.get(field.name, (field.default,))
            for field in dataclasses.fields(config)
            if field.name not in FOLLOWED
        )
    )


def in_kernels(
    model: MemoryLM, ids: mx.array, phases: mx.array, memories: list[mx.array]
) -> tuple[mx.array, list[mx.array]]:
    """`next_logits` in 5 kernels a layer and 3 more."""
    embedding, norm = model.embedding.weight, model.embedding_norm
    z = decode.embedding(ids, embedding, norm.scale, norm.eps)  # [B, (2,) D]
    after = []
    for layer, memory in zip(model.layers, memories, strict=True):
        z, memory = _block(layer, z, phases, ids, memory)
        after.append(memory)
    z = decode.product(z, model.head.weight)
    return decode.logits(z, model.head_norm.scale, embedding, model.head_norm.eps), after


def _block(
    layer: Block, z: mx.array, phases: mx.array, ids: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """z + alpha_cgu Unit(norm(z)), then z + alpha_pam Memory(norm(z))   (eqs. 2 and 3)."""
    unit, norm = layer.unit, layer.unit_norm
    bias = unit.activation.bias if "activation" in unit else None
    h = decode.unit(z, norm.scale, unit.up_gate.weight, bias, norm.eps)  # [B, (2,) ED]
    z = decode.product(h, unit.down.weight, layer.alpha_cgu, z)  # [B, (2,) D]

    memory, norm = layer.memory, layer.memory_norm
    decay, protect = ((gate.weight, gate.bias) for gate in (memory.decay, memory.protect))
    projected = decode.projections(z, norm.scale, memory.qkv.weight, decay, protect, norm.eps)
    y, state = decode.memory(*projected, phases, ids, memory.config.reset_token, state)
    return decode.product(y, memory.out.weight, layer.alpha_pam, z), state  # [B, (2,) D]


def _has_one_type(model: MemoryLM) -> bool:
    """Whether all weights are of one type, which the kernels take."""
    dtypes = {weight.dtype for _, weight in tree_flatten(model.parameters())}
    return len(dtypes) == 1 and dtypes <= set(metal.DTYPES)
