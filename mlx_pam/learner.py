"""Training in MLX: gradients that add up, and the step of AdamW they end in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_reduce

from mlx_pam import distributed
from mlx_pam.arrays import DTYPES, named_weights, set_weights
from mlx_pam.config import Recipe
from mlx_pam.models import Model
from mlx_pam.models.diagnostics import activations
from mlx_pam.ops.compiling import can_compile
from mlx_pam.ops.loss import summed_loss, token_losses
from mlx_pam.parameters import block_of, is_decayed, parameter_table


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
        self.dtype = DTYPES[dtype]
        self._table = parameter_table(model.config)
        self._recipe = recipe
        self._recompute = recompute
        self._deterministic = deterministic
        self._optimizer = self._new_optimizer(recipe)
        self._accumulated = None
        self._targets = 0  # in the accumulated gradient
        self._phases: dict[int, mx.array] = {}
        compiled = mx.compile if can_compile() else lambda function, **_: function
        self._loss_and_gradient = compiled(mx.value_and_grad(self._loss))
        state = [self._optimizer.state]
        self._apply = compiled(self._step, inputs=state, outputs=state)
        self._token_losses = compiled(self._evaluation)

    def _new_optimizer(self, recipe: Recipe) -> optim.Optimizer:
        settings = {
            "learning_rate": recipe.peak_lr,
            "betas": list(recipe.betas),
            "eps": recipe.adam_eps,
            "bias_correction": True,
        }
        decaying = optim.AdamW(weight_decay=recipe.weight_decay, **settings)
        still = optim.AdamW(weight_decay=0.0, **settings)

        def decays(name: str, _: mx.array) -> bool:
            return recipe.decay == "all" or is_decayed(self._table[name])

        optimizer = optim.MultiOptimizer([decaying, still], [decays])
        optimizer.init(self.model.trainable_parameters())
        return optimizer

    @contextlib.contextmanager
    def _working(self, parameters) -> Iterator[None]:
        """Inside, the model holds these parameters, the weights of products in compute dtype."""
        kept = self.model.trainable_parameters()
        self.model.update(tree_map_with_path(self._cast, parameters))
        try:
            yield
        finally:
            self.model.update(kept)  # so that the model never holds the placeholders of a trace

    def _cast(self, name: str, parameter: mx.array) -> mx.array:
        """Weights of products in compute dtype; the embedding, norms, biases and scales as stored.

        The head reads the embedding in compute dtype, see `_hidden`.
        """
        product = self._table[name].kind in ("matrix", "gate")
        return parameter.astype(self.dtype) if product else parameter

    def _hidden(self, parameters, ids: mx.array, phases: mx.array) -> tuple[mx.array, mx.array]:
        """The head's input, as rows `[BT, E]`, and its table, both in compute dtype."""
        with self._working(parameters):
            hidden, _ = self.model.hidden(
                ids, phases, recompute=self._recompute, deterministic=self._deterministic
            )
            x, table = self.model.embedding.head(hidden)
        return x.reshape(-1, x.shape[-1]).astype(self.dtype), table.astype(self.dtype)

    def _loss(self, parameters, batch: mx.array, phases: mx.array, scale: mx.array) -> mx.array:
        x, table = self._hidden(parameters, batch[:, :-1], phases)
        targets = mx.flatten(batch[:, 1:])
        return summed_loss(x, table, targets, self._deterministic)[0] * scale

    def _evaluation(self, parameters, batch: mx.array, phases: mx.array) -> mx.array:
        x, table = self._hidden(parameters, batch[:, :-1], phases)
        return token_losses(x, table, mx.flatten(batch[:, 1:]))

    def _step(self, parameters, gradient, norm: mx.array):
        scale = mx.minimum(self._recipe.clip_norm / (norm + 1e-6), 1.0)
        return self._optimizer.apply_gradients(tree_map(lambda g: g * scale, gradient), parameters)

    def _phases_of(self, time: int) -> mx.array:
        if time not in self._phases:
            self._phases[time] = self.model.phases(np.arange(time))
        return self._phases[time]

    def gradient(self, batch: np.ndarray, total_tokens: int) -> float:
        phases = self._phases_of(batch.shape[1] - 1)
        scale = mx.array(distributed.size() / total_tokens)  # the mean over processes
        rows = mx.array(distributed.share(batch))
        loss, gradient = self._loss_and_gradient(
            self.model.trainable_parameters(), rows, phases, scale
        )
        if self._accumulated is not None:
            gradient = tree_map(mx.add, self._accumulated, gradient)
        self._targets += batch[:, 1:].size
        if self._targets == total_tokens:
            gradient = distributed.mean(gradient)
        self._accumulated = gradient
        with distributed.together():
            mx.eval(loss, gradient)
        return distributed.total(loss.item() * total_tokens / distributed.size())

    def gradient_norm(self) -> float:
        square = tree_reduce(lambda total, g: total + g.square().sum(), self._accumulated, 0.0)
        return mx.sqrt(square).item()

    def diagnostics(self, windows: np.ndarray) -> dict[str, float]:
        squares: dict[str, mx.array] = {}
        for name, gradient in tree_flatten(self._accumulated):
            block = block_of(name)
            squares[block] = squares.get(block, 0.0) + gradient.square().sum()
        found = {f"{block}.grad_norm": mx.sqrt(square) for block, square in squares.items()}
        ids, phases = mx.array(windows[:, :-1]), self._phases_of(windows.shape[1] - 1)
        with self._working(self.model.trainable_parameters()):
            found |= activations(self.model, ids, phases)
        mx.eval(found)
        return {name: value.item() for name, value in found.items()}

    def update(self, lr: float, norm: float | None = None) -> None:
        self._optimizer.learning_rate = lr
        norm = mx.array(self.gradient_norm() if norm is None else norm)
        parameters = self._apply(self.model.trainable_parameters(), self._accumulated, norm)
        self.discard()
        self.model.update(parameters)
        mx.eval(self.model.parameters(), self._optimizer.state)

    def discard(self) -> None:
        self._targets, self._accumulated = 0, None

    def evaluate(self, batch: np.ndarray, mask: np.ndarray) -> float:
        phases = self._phases_of(batch.shape[1] - 1)
        rows = mx.array(distributed.share(batch))
        losses = self._token_losses(self.model.trainable_parameters(), rows, phases)
        inside = distributed.share(mask).reshape(-1)
        return distributed.total(float(np.array(losses, np.float64)[inside].sum()))

    def weights(self) -> dict[str, np.ndarray]:
        return named_weights(self.model) if distributed.is_main() else {}

    def optimizer(self) -> dict[str, np.ndarray]:
        if not distributed.is_main():
            return {}
        record = {"step": np.array(self._optimizer.optimizers[0].step.item(), np.int64)}
        moments = {}
        for part in self._optimizer.optimizers:
            moments |= {
                k: v for k, v in tree_flatten(part.state) if k not in ("step", "learning_rate")
            }
        for name in self._table:
            record[f"exp_avg.{name}"] = np.array(moments[f"{name}.m"])
            record[f"exp_avg_sq.{name}"] = np.array(moments[f"{name}.v"])
        return record

    def restore(
        self, weights: Mapping[str, np.ndarray], optimizer: Mapping[str, np.ndarray]
    ) -> None:
        set_weights(self.model, weights)
        for part in self._optimizer.optimizers:
            part.state["step"] = mx.array(int(optimizer["step"]), mx.uint64)
            for key, value in tree_flatten(part.state):
                name, _, moment = key.rpartition(".")
                if moment in ("m", "v"):
                    source = optimizer[("exp_avg." if moment == "m" else "exp_avg_sq.") + name]
                    value[...] = mx.array(source)
        mx.eval(self._optimizer.state)
