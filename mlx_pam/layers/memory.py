"""The associative memory layer: project, rotate, decay, retrieve (eqs. 4-7), and their variants.

B batch   T time   D width   H heads   d head width; a complex array has an axis of 2 before its
last one.
"""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn

from mlx_pam.config import MemoryConfig
from mlx_pam.layers.convolution import Convolution
from mlx_pam.layers.field import Field
from mlx_pam.ops import complex as cx
from mlx_pam.ops.decay import log_decay, write_strength
from mlx_pam.ops.product import product
from mlx_pam.ops.retrieval import retrieve


class Gate(nn.Module):
    """A real affine map of real features: W f + b, one output per head or per channel of a head."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = mx.zeros((outputs, inputs))
        self.bias = mx.zeros((outputs,))

    def __call__(self, features: mx.array) -> mx.array:
        return product(features, self.weight).astype(mx.float32) + self.bias


class Memory(nn.Module):
    """Phase-Associative Memory over the complex field, its real twin over the real one."""

    def __init__(self, config: MemoryConfig, field: Field):
        super().__init__()
        self.config, self.field = config, field
        width, heads = config.memory_dim, config.num_heads
        self.qkv = field.linear(config.dim, 3 * width, groups_out=3 * heads)
        self.out = field.linear(width, config.dim, groups_in=heads)
        if config.fixed_decay is None:
            self.decay = Gate(field.planes * config.dim, heads)
        if config.protect != "none":
            self.protect = Gate(config.dim, width if config.protect == "channel" else heads)
        self.arrays = 1 if config.conv_width == 1 else 2  # of its state
        if config.conv_width > 1:
            self.convolution = Convolution(config, field)
        if config.query_scale is not None:
            self.query_scale = mx.full((heads,), config.query_scale)

    def __call__(
        self,
        x: mx.array,
        phases: mx.array,
        state: tuple[mx.array, ...] | None = None,
        mask: mx.array | None = None,
        form: str = "auto",
        resets: mx.array | None = None,
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """Read the memory at every token, having written it.

        x: the normed block input, `[B, T, (2,) D]`.
        phases: rotary, `[T, 2, width]` or `[B, T, 2, width]`.
        state: S_0 and, with a convolution, its `recent`; None at the beginning of a text.
        mask: `[B, T]`, where False the token neither decays nor writes; such come last in a row.
        resets: `[B, T]`, where True gamma is 0: what came before the token is forgotten.
        Returns the layer's output, like x, and the state after the last token.
        """
        first, *recent = state or (None,)
        qkv, kept = self.qkv(x), ()  # [B, T, 3H, (2,) d]
        if self.config.conv_width > 1:
            qkv, *kept = self.convolution(qkv, *recent, mask=mask, resets=resets)
        q, k, v = mx.split(qkv, 3, axis=2)  # [B, T, H, (2,) d]
        q, k = self._normed(q), self._normed(k)
        if self.config.rotary:
            q, k = self.field.rotate(q, phases), self.field.rotate(k, phases)
        decay, write = self.gates(x)  # [B, T, H], [B, T, H, 1 or d]
        if resets is not None:
            decay = mx.where(resets[..., None], -mx.inf, decay)
        if mask is not None:
            decay = mx.where(mask[..., None], decay, 0)
            write = mx.where(mask[..., None, None], write, 0)
        if self.field.planes == 2:
            write = write[..., None, :]  # one gate for both planes
        y, last = retrieve(self._scaled(q), k, (v * write).astype(v.dtype), decay, first, form)
        return self.out(y), (last, *kept)

    def _normed(self, x: mx.array) -> mx.array:
        """Queries or keys, `[B, T, H, (2,) d]`, of one length if the configuration has it so."""
        if self.config.qk_norm == "head":
            return self.field.unit_vectors(x, self.config.norm_eps).astype(x.dtype)
        if self.config.qk_norm == "phase":
            inverse = cx.magnitude_and_inverse(x.astype(mx.float32))[1]
            return (x * inverse[..., None, :]).astype(x.dtype)
        return x

    def _scaled(self, q: mx.array) -> mx.array:
        if self.config.query_scale is None:
            return q * self.config.head_dim**-0.5
        scale = mx.expand_dims(self.query_scale, tuple(range(1, q.ndim - 2)))
        return (q * scale).astype(q.dtype)

    def gates(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """log gamma `[B, T, H]`, and 1 - p, how much of a value is written, `[B, T, H, 1 or d]`."""
        heads, d = self.config.num_heads, self.config.head_dim
        numbers, magnitudes = self.field.features(x)
        if self.config.fixed_decay is None:
            decay_logit = self.decay(numbers)  # [B, T, H]
        else:  # e^-dt = 1 - sigmoid(logit)
            kept = self.config.fixed_decay
            logit = math.log1p(-kept) - math.log(kept) if kept < 1 else -math.inf
            decay_logit = mx.full((*x.shape[:2], heads), logit)
        if self.config.protect == "none":
            return -nn.softplus(decay_logit), mx.ones((*x.shape[:2], heads, 1))
        gate_logit = self.protect(magnitudes)  # [B, T, H], or [B, T, Hd] for a gate per channel
        if self.config.protect == "channel":
            gate_logit = mx.unflatten(gate_logit, -1, (heads, d))  # [B, T, H, d]
        write = write_strength(gate_logit)
        if self.config.protect == "head":
            write = write[..., None]
        return log_decay(decay_logit, gate_logit), write
