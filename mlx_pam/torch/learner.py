"""Training in PyTorch: gradients that add up, and the step of AdamW they end in."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from mlx_pam.config import Recipe
from mlx_pam.parameters import block_of, is_decayed, parameter_table
from mlx_pam.torch import distributed
from mlx_pam.torch.arrays import DTYPES, named_arrays, named_weights, set_weights, tensor_like
from mlx_pam.torch.models import Model
from mlx_pam.torch.models.diagnostics import activations
from mlx_pam.torch.ops.fusing import as_written, can_compile, compile_layers
from mlx_pam.torch.ops.loss import summed_loss, token_losses


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """The recipe's AdamW over a model that has a `config` and the names of `parameter_table`."""
    table = parameter_table(model.config)
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[recipe.decay == "all" or is_decayed(table[name])].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": recipe.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=recipe.peak_lr,
        betas=recipe.betas,
        eps=recipe.adam_eps,
        fused=True,
    )


class Learner:
    """A model in training, see `mlx_pam.backend.Learner`; weights and moments are float32."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        dtype: str = "float32",
        recompute: bool = False,
        deterministic: bool = False,
    ):
        self.model = model
        self._recipe = recipe
        self._recompute = recompute
        self._deterministic = deterministic
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by the first product
        self._device = next(model.parameters()).device
        self._dtype = DTYPES[dtype]
        self._optimizer = adamw(model, recipe)
        self._phases: dict[int, Tensor] = {}
        self._targets = 0  # in the accumulated gradient
        if can_compile(self._device.type):
            compile_layers(model.layers)
        self._hidden = distributed.spread(model)

    def _inputs(self, batch: np.ndarray) -> tuple[Tensor, Tensor]:
        """Windows `[B, T+1]` where the model is, and the phases of their places."""
        time = batch.shape[1] - 1
        if time not in self._phases:
            self._phases[time] = self.model.phases(np.arange(time))
        return torch.from_numpy(batch).to(self._device, torch.long), self._phases[time]

    def _rows(self, batch: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """What the head reads, `[BT, E]`, its table, in the type of the arithmetic, and targets."""
        ids, phases = self._inputs(batch)
        with _arithmetic(self._device, self._dtype):
            hidden, _ = self._hidden(ids[:, :-1], phases, recompute=self._recompute)
        x, table = self.model.embedding.head(hidden)
        x = x.reshape(-1, x.shape[-1]).to(self._dtype)
        return x, table.to(self._dtype), ids[:, 1:].reshape(-1)

    def gradient(self, batch: np.ndarray, total_tokens: int) -> float:
        self._targets += batch[:, 1:].size
        due = self._targets == total_tokens
        with _fixed_order(self._deterministic), distributed.reduction(self._hidden, due=due):
            loss = summed_loss(*self._rows(distributed.share(batch)))
            (loss / (total_tokens / distributed.size())).backward()  # the mean over processes
        return distributed.total(loss.item())

    def gradient_norm(self) -> float:
        norms = [parameter.grad.norm() for parameter in self.model.parameters()]
        return distributed.whole(torch.stack(norms).norm()).item()

    @torch.no_grad()
    def diagnostics(self, windows: np.ndarray) -> dict[str, float]:
        norms: dict[str, list[Tensor]] = {}
        for name, parameter in distributed.parameters(self.model):
            norms.setdefault(block_of(name), []).append(parameter.grad.norm())
        found = {
            f"{block}.grad_norm": distributed.whole(torch.stack(parts).norm())
            for block, parts in norms.items()
        }
        ids, phases = self._inputs(windows)
        with as_written(), _arithmetic(self._device, self._dtype):
            found |= activations(self.model, ids[:, :-1], phases)
        return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))

    def update(self, lr: float, norm: float | None = None) -> None:
        norm = torch.tensor(self.gradient_norm() if norm is None else norm, device=self._device)
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self._recipe.clip_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self.discard()

    def discard(self) -> None:
        self._targets = 0
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self, batch: np.ndarray, mask: np.ndarray) -> float:
        losses = token_losses(*self._rows(distributed.share(batch))).cpu().numpy()
        inside = distributed.share(mask).reshape(-1)
        return distributed.total(float(losses.astype(np.float64)[inside].sum()))

    def weights(self) -> dict[str, np.ndarray]:
        return named_weights(self.model)

    def optimizer(self) -> dict[str, np.ndarray]:
        steps, record = 0, {}
        for moment in ("exp_avg", "exp_avg_sq"):
            values = {}
            for name, parameter in distributed.parameters(self.model):
                moments = self._optimizer.state.get(parameter, {})
                steps = int(moments.get("step", 0))
                values[name] = moments.get(moment, torch.zeros_like(parameter))
            arrays = named_arrays(self.model, values.items())
            record |= {f"{moment}.{name}": array for name, array in arrays.items()}
        return {"step": np.array(steps, np.int64)} | record

    def restore(
        self, weights: Mapping[str, np.ndarray], optimizer: Mapping[str, np.ndarray]
    ) -> None:
        set_weights(self.model, weights)
        for name, parameter in distributed.parameters(self.model):
            step = torch.tensor(float(optimizer["step"]), device=parameter.device)
            moments = {"step": step}  # on the device: the fused update reads it there
            for moment in ("exp_avg", "exp_avg_sq"):
                moments[moment] = tensor_like(optimizer[f"{moment}.{name}"], parameter)
            self._optimizer.state[parameter] = moments


@contextlib.contextmanager
def _fixed_order(deterministic: bool) -> Iterator[None]:
    """Inside, where asked for, a GPU sums in a fixed order too; PyTorch warns where it cannot.

    Its warning about cumsum is of sums over a whole array; ours run along rows of one.
    """
    if not deterministic:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="cumsum_cuda_kernel")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warned)


def _arithmetic(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    """bfloat16 products under float32 weights, where asked for."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)
