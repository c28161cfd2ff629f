"""The associative memory layer: project, rotate, decay, retrieve (eqs. 4-7).

B batch   T time   D width   H heads   d head width; a complex array has an axis of 2 before its
last one.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.config import MemoryConfig
from mlx_pam.layers.field import Field
from mlx_pam.ops.decay import log_decay, write_strength
from mlx_pam.ops.retrieval import retrieve


class Gate(nn.Module):
    """A real affine map of real features: W f + b, one output per head or per channel of a head."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = mx.zeros((outputs, inputs))
        self.bias = mx.zeros((outputs,))

    def __call__(self, features: mx.array) -> mx.array:
        logit = features @ self.weight.T
        return logit.astype(mx.float32) + self.bias.astype(mx.float32)


class Memory(nn.Module):
    """Phase-Associative Memory over the complex field, its real twin over the real one."""

    def __init__(self, config: MemoryConfig, field: Field):
        super().__init__()
        self.config, self.field = config, field
        width, heads = config.memory_dim, config.num_heads
        gates = width if config.protect == "channel" else heads
        self.qkv = field.linear(config.dim, 3 * width, groups_out=3 * heads)
        self.out = field.linear(width, config.dim, groups_in=heads)
        self.decay = Gate(field.planes * config.dim, heads)
        self.protect = Gate(config.dim, gates)

    def __call__(
        self,
        x: mx.array,
        phases: mx.array,
        state: mx.array | None = None,
        mask: mx.array | None = None,
        form: str = "auto",
        resets: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        """Read the memory at every token, having written it.

        x: the normed block input, `[B, T, (2,) D]`.
        phases: rotary, `[T, 2, width]` or `[B, T, 2, width]`.
        state: S_0 or None; mask: `[B, T]`, where False the token neither decays nor writes.
        resets: `[B, T]`, where True gamma is 0: what came before the token is forgotten.
        Returns the layer's output, like x, and the state after the last token.
        """
        heads, d = self.config.num_heads, self.config.head_dim
        q, k, v = mx.split(self.qkv(x), 3, axis=2)  # [B, T, H, (2,) d]
        q = self.field.rotate(q, phases) * d**-0.5
        k = self.field.rotate(k, phases)

        numbers, magnitudes = self.field.features(x)
        decay_logit = self.decay(numbers)  # [B, T, H]
        gate_logit = self.protect(magnitudes)  # [B, T, H], or [B, T, Hd] for a gate per channel
        if self.config.protect == "channel":
            gate_logit = mx.unflatten(gate_logit, -1, (heads, d))  # [B, T, H, d]
        decay = log_decay(decay_logit, gate_logit)  # [B, T, H]
        write = write_strength(gate_logit)  # [B, T, H] or [B, T, H, d]
        if resets is not None:
            decay = mx.where(resets[..., None], -mx.inf, decay)
        if mask is not None:
            decay = mx.where(mask[..., None], decay, 0)
            write = mx.where(mx.expand_dims(mask, tuple(range(2, write.ndim))), write, 0)
        if self.config.protect == "head":
            write = write[..., None]
        if self.field.planes == 2:
            write = write[..., None, :]  # one gate for both planes
        y, state = retrieve(q, k, v * write.astype(v.dtype), decay, state, form)
        return self.out(y), state
