"""The associative memory layer: project, rotate, decay, retrieve (eqs. 4-7), and their variants.

B batch   T time   D width   H heads   d head width; a complex tensor has a dimension of 2 before
its last one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mlx_pam.config import MemoryConfig
from mlx_pam.torch.layers.convolution import Convolution
from mlx_pam.torch.layers.field import Field
from mlx_pam.torch.ops import complex as cx
from mlx_pam.torch.ops.decay import log_decay, softplus, write_strength
from mlx_pam.torch.ops.product import real_linear
from mlx_pam.torch.ops.retrieval import retrieve


class Gate(nn.Module):
    """A real affine map of real features: W f + b, one output per head or per channel of a head."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, features: Tensor) -> Tensor:
        return real_linear(features, self.weight).float() + self.bias


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
            self.query_scale = nn.Parameter(torch.full((heads,), config.query_scale))

    def forward(
        self,
        x: Tensor,
        phases: Tensor,
        state: tuple[Tensor, ...] | None = None,
        mask: Tensor | None = None,
        form: str = "auto",
        resets: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
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
        q, k, v = qkv.chunk(3, dim=2)  # [B, T, H, (2,) d]
        q, k = self._normed(q), self._normed(k)
        scale = self.config.head_dim**-0.5
        if self.config.query_scale is not None:
            q, scale = (q * self.query_scale.reshape(-1, *[1] * (q.ndim - 3))).to(q.dtype), 1.0
        if self.config.rotary:
            q, k = self.field.rotate(q, phases * scale), self.field.rotate(k, phases)
        else:
            q = q * scale
        decay, write = self.gates(x)  # [B, T, H], [B, T, H, 1 or d]
        if resets is not None:
            decay = torch.where(resets[..., None], -torch.inf, decay)
        if mask is not None:
            decay = torch.where(mask[..., None], decay, 0.0)
            write = write * mask[..., None, None]
        if self.field.planes == 2:
            write = write[..., None, :]  # one gate for both planes
        y, last = retrieve(q, k, (v * write).to(v.dtype), decay, first, form)
        return self.out(y), (last, *kept)

    def _normed(self, x: Tensor) -> Tensor:
        """Queries or keys, `[B, T, H, (2,) d]`, of one length if the configuration has it so."""
        if self.config.qk_norm == "head":
            return self.field.unit_vectors(x, self.config.norm_eps).to(x.dtype)
        if self.config.qk_norm == "phase":
            inverse = cx.magnitude_and_inverse(x.float())[1]
            return (x * inverse[..., None, :]).to(x.dtype)
        return x

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log gamma `[B, T, H]`, and 1 - p, how much of a value is written, `[B, T, H, 1 or d]`."""
        heads, d = self.config.num_heads, self.config.head_dim
        numbers, magnitudes = self.field.features(x)
        if self.config.fixed_decay is None:
            decay_logit = self.decay(numbers)  # [B, T, H]
        else:  # e^-dt = 1 - sigmoid(logit)
            kept = self.config.fixed_decay
            logit = math.log1p(-kept) - math.log(kept) if kept < 1 else -math.inf
            decay_logit = x.new_full((*x.shape[:2], heads), logit, dtype=torch.float32)
        if self.config.protect == "none":
            return -softplus(decay_logit), torch.ones_like(decay_logit)[..., None]
        gate_logit = self.protect(magnitudes)  # [B, T, H], or [B, T, Hd] for a gate per channel
        if self.config.protect == "channel":
            gate_logit = gate_logit.unflatten(-1, (heads, d))  # [B, T, H, d]
        write = write_strength(gate_logit)
        if self.config.protect == "head":
            write = write[..., None]
        return log_decay(decay_logit, gate_logit), write
