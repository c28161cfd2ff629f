"""PAM as its equations stand on paper, in plain eager PyTorch: the baseline of the benchmarks.

A complex number is a pair of tensors, real and imaginary part; a complex map is four real products;
the memory is the T x T dual form; a magnitude is sqrt(re^2 + im^2 + eps); the loss sees the logits
of the whole batch. It has the names and shapes of a checkpoint's weights, so that it loads them.

B batch   T time   D width   H heads   d head width   V vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlx_pam.config import PAMConfig, Recipe, require
from mlx_pam.torch.learner import adamw

EPS = 1e-8

Complex = tuple[Tensor, Tensor]


def magnitude(z: Complex) -> Tensor:
    re, im = z
    return torch.sqrt(re * re + im * im + EPS)


def multiply(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def scale(z: Complex, factor: Tensor) -> Complex:
    return z[0] * factor, z[1] * factor


def product(weight: Tensor, z: Complex) -> Complex:
    (w_re, w_im), (re, im) = weight, z
    return F.linear(re, w_re) - F.linear(im, w_im), F.linear(re, w_im) + F.linear(im, w_re)


class Linear(nn.Module):
    """y_re = W_re x_re - W_im x_im, y_im = W_im x_re + W_re x_im."""

    def __init__(self, n: int, m: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, m, n))

    def forward(self, z: Complex) -> Complex:
        return product(self.weight, z)


class Norm(nn.Module):
    """s (|z| / RMS(|z|)) z/|z|."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, z: Complex) -> Complex:
        size = magnitude(z)
        rms = torch.sqrt((size * size).mean(dim=-1, keepdim=True) + self.eps)
        phase = scale(z, 1 / size)
        return scale(phase, self.scale * (size / rms))


class ModReLU(nn.Module):
    """ReLU(|z| + b) z/|z|."""

    def __init__(self, d: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, z: Complex) -> Complex:
        size = magnitude(z)
        return scale(scale(z, 1 / size), F.relu(size + self.bias))


class GatedUnit(nn.Module):
    """W_down(u * modReLU(W_up z) * sigmoid(|W_g z|)), u the gate's phase   (eq. 1)."""

    def __init__(self, config: PAMConfig):
        super().__init__()
        self.up_gate = Linear(config.dim, 2 * config.hidden_dim)  # two maps in one array
        self.activation = ModReLU(config.hidden_dim)
        self.down = Linear(config.hidden_dim, config.dim)

    def forward(self, z: Complex) -> Complex:
        w_up, w_gate = self.up_gate.weight.chunk(2, dim=1)
        up, gate = self.activation(product(w_up, z)), product(w_gate, z)
        size = magnitude(gate)
        return self.down(scale(multiply(scale(gate, 1 / size), up), torch.sigmoid(size)))


class Memory(nn.Module):
    """Y = ((Q K^H) * D) V', D[t, i] = gamma_{i+1} ... gamma_t   (eqs. 4-7, dual form)."""

    def __init__(self, config: PAMConfig):
        super().__init__()
        self.config = config
        width, heads = config.memory_dim, config.num_heads
        self.qkv = Linear(config.dim, 3 * width)
        self.out = Linear(width, config.dim)
        self.decay = nn.Linear(2 * config.dim, heads)
        self.protect = nn.Linear(config.dim, heads)

    def forward(self, x: Complex, phases: Complex) -> Complex:
        c = self.config
        batch, time, _ = x[0].shape

        def heads(part: Tensor) -> Tensor:
            return part.view(batch, time, 3, c.num_heads, c.head_dim).permute(2, 0, 3, 1, 4)

        q, k, v = zip(*(heads(part) for part in self.qkv(x)), strict=True)  # pairs [B, H, T, d]
        (q_re, q_im), (k_re, k_im) = multiply(q, phases), multiply(k, phases)
        q_re, q_im = q_re * c.head_dim**-0.5, q_im * c.head_dim**-0.5

        keep = torch.sigmoid(self.protect(magnitude(x))).transpose(1, 2)  # p, [B, H, T]
        step = F.softplus(self.decay(torch.cat(x, dim=-1))).transpose(1, 2)  # dt
        gamma = torch.exp(-step) * (1 - keep) + keep
        v_re, v_im = scale(v, (1 - keep)[..., None])

        sums = torch.log(gamma).cumsum(dim=-1)
        past = torch.ones(time, time, dtype=torch.bool, device=sums.device).tril()
        spans = sums[..., :, None] - sums[..., None, :]
        decay = torch.exp(spans.masked_fill(~past, -torch.inf))  # [B, H, T, T]

        k_re, k_im = k_re.transpose(-1, -2), k_im.transpose(-1, -2)
        re = (q_re @ k_re + q_im @ k_im) * decay  # [B, H, T, T]
        im = (q_im @ k_re - q_re @ k_im) * decay
        y = re @ v_re - im @ v_im, re @ v_im + im @ v_re
        return self.out(tuple(part.transpose(1, 2).flatten(-2) for part in y))


class Block(nn.Module):
    """z + alpha_cgu Unit(norm(z)), then z + alpha_pam Memory(norm(z))   (eqs. 2 and 3)."""

    def __init__(self, config: PAMConfig):
        super().__init__()
        self.unit_norm = Norm(config.dim, config.norm_eps)
        self.unit = GatedUnit(config)
        self.alpha_cgu = nn.Parameter(torch.zeros(()))
        self.memory_norm = Norm(config.dim, config.norm_eps)
        self.memory = Memory(config)
        self.alpha_pam = nn.Parameter(torch.zeros(()))

    def forward(self, z: Complex, phases: Complex) -> Complex:
        y = scale(self.unit(self.unit_norm(z)), self.alpha_cgu)
        z = z[0] + y[0], z[1] + y[1]
        y = scale(self.memory(self.memory_norm(z), phases), self.alpha_pam)
        return z[0] + y[0], z[1] + y[1]


class NaivePAM(nn.Module):
    """logits = z_re E_re^T + z_im E_im^T: `[B, T]` token ids -> `[B, T, V]`."""

    def __init__(self, config: PAMConfig, weights: Mapping[str, np.ndarray]):
        super().__init__()
        require(config.protect == "head", "protect", "'head' in the baseline", config.protect)
        self.config = config
        self.embedding = nn.Module()
        self.embedding.weight = nn.Parameter(torch.zeros(config.vocab_size, 2, config.dim))
        self.embedding_norm = Norm(config.dim, config.norm_eps)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Linear(config.dim, config.dim)
        self.head_norm = Norm(config.dim, config.norm_eps)
        self.load_state_dict({name: torch.tensor(x) for name, x in weights.items()})

    def forward(self, ids: Tensor) -> Tensor:
        c, table = self.config, self.embedding.weight
        theta = c.rotary_base ** (-torch.arange(c.head_dim, device=ids.device) / c.head_dim)
        angle = torch.arange(ids.shape[1], device=ids.device)[:, None] * theta  # [T, d]
        phases = torch.cos(angle), torch.sin(angle)
        z = self.embedding_norm(F.embedding(ids, table.flatten(1)).chunk(2, dim=-1))
        for layer in self.layers:
            z = layer(z, phases)
        re, im = self.head_norm(self.head(z))
        return re @ table[:, 0].T + im @ table[:, 1].T


class NaiveLearner:
    """Trains a `NaivePAM` by the optimizer of the product: see `mlx_pam.backend.Learner`."""

    def __init__(self, model: NaivePAM, recipe: Recipe):
        self.model, self._clip_norm = model, recipe.clip_norm
        self._optimizer = adamw(model, recipe)

    def gradient(self, batch: np.ndarray, total_tokens: int) -> float:
        ids = torch.from_numpy(batch).to(self.model.head.weight.device, torch.long)
        logits = self.model(ids[:, :-1])  # [B, T, V]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        (loss / total_tokens).backward()
        return loss.item()

    def update(self, lr: float) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
