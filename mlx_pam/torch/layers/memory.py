"""The associative memory layer: project, rotate, decay, retrieve (eqs. 4-7).

B batch   T time   D width   H heads   d head width; a complex tensor has a dimension of 2 before
its last one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlx_pam.config import MemoryConfig
from mlx_pam.torch.layers.field import Field
from mlx_pam.torch.ops.decay import log_decay, write_strength
from mlx_pam.torch.ops.retrieval import retrieve


class Gate(nn.Module):
    """A real affine map of real features: W f + b, one output per head or per channel of a head."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight).float() + self.bias


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

    def forward(
        self,
        x: Tensor,
        phases: Tensor,
        state: Tensor | None = None,
        mask: Tensor | None = None,
        form: str = "auto",
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read the memory at every token, having written it.

        x: the normed block input, `[B, T, (2,) D]`.
        phases: rotary, `[T, 2, width]` or `[B, T, 2, width]`.
        state: S_0 or None; mask: `[B, T]`, where False the token neither decays nor writes.
        resets: `[B, T]`, where True gamma is 0: what came before the token is forgotten.
        Returns the layer's output, like x, and the state after the last token.
        """
        heads, d = self.config.num_heads, self.config.head_dim
        q, k, v = self.qkv(x).chunk(3, dim=2)  # [B, T, H, (2,) d]
        q = self.field.rotate(q, phases * d**-0.5)
        k = self.field.rotate(k, phases)

        numbers, magnitudes = self.field.features(x)
        decay_logit = self.decay(numbers)  # [B, T, H]
        gate_logit = self.protect(magnitudes)  # [B, T, H], or [B, T, Hd] for a gate per channel
        if self.config.protect == "channel":
            gate_logit = gate_logit.unflatten(-1, (heads, d))  # [B, T, H, d]
        decay = log_decay(decay_logit, gate_logit)  # [B, T, H]
        write = write_strength(gate_logit)  # [B, T, H] or [B, T, H, d]
        if resets is not None:
            decay = torch.where(resets[..., None], -torch.inf, decay)
        if mask is not None:
            decay = torch.where(mask[..., None], decay, 0.0)
            write = write * mask.reshape(*mask.shape, *[1] * (write.ndim - 2))
        if self.config.protect == "head":
            write = write[..., None]
        if self.field.planes == 2:
            write = write[..., None, :]  # one gate for both planes
        y, state = retrieve(q, k, (v * write).to(v.dtype), decay, state, form)
        return self.out(y), state
