"""The MLX runtime: build a model, train it, decode with it."""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_reduce, tree_unflatten

from mlx_pam import blas, processes
from mlx_pam.config import ModelConfig, Recipe
from mlx_pam.decoder_state import checked_state, room, state_shapes
from mlx_pam.models import Model
from mlx_pam.models import build as build_model
from mlx_pam.ops.compiling import can_compile
from mlx_pam.ops.loss import summed_loss, token_losses
from mlx_pam.ops.retrieval import FORMS, retrieve
from mlx_pam.parameters import initial_weights, is_decayed, parameter_table

PREFILL_TOKENS = 1024  # prompt tokens per row read at once
COMPILED_FROM = 1000  # tokens to come
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class Learner:
    """A model in training, see `mlx_pam.backend.Learner`; weights and moments are float32."""

    def __init__(self, model: Model, recipe: Recipe, dtype: str = "float32"):
        self.model = model
        self.dtype = DTYPES[dtype]
        self._recipe = recipe
        self._optimizer = self._new_optimizer(recipe)
        self._accumulated = None
        self._phases: dict[int, mx.array] = {}
        compiled = mx.compile if can_compile() else lambda function, **_: function
        self._loss_and_gradient = compiled(mx.value_and_grad(self._loss))
        state = [self._optimizer.state]
        self._apply = compiled(self._step, inputs=state, outputs=state)
        self._token_losses = compiled(self._evaluation)

    def _new_optimizer(self, recipe: Recipe) -> optim.Optimizer:
        table = parameter_table(self.model.config)
        settings = {
            "learning_rate": recipe.peak_lr,
            "betas": list(recipe.betas),
            "eps": recipe.adam_eps,
            "bias_correction": True,
        }
        decaying = optim.AdamW(weight_decay=recipe.weight_decay, **settings)
        still = optim.AdamW(weight_decay=0.0, **settings)

        def decays(name: str, _: mx.array) -> bool:
            return recipe.decay == "all" or is_decayed(table[name])

        optimizer = optim.MultiOptimizer([decaying, still], [decays])
        optimizer.init(self.model.trainable_parameters())
        return optimizer

    def _hidden(self, parameters, ids: mx.array, phases: mx.array) -> tuple[mx.array, mx.array]:
        """What the head reads, as rows `[BT, E]`, and its table, in the type of the arithmetic."""
        kept = self.model.trainable_parameters()
        self.model.update(tree_map(lambda p: p.astype(self.dtype), parameters))
        hidden, _ = self.model.hidden(ids, phases)
        x, table = self.model.embedding.head(hidden)
        self.model.update(kept)  # so that the model never holds the placeholders of a trace
        return x.reshape(-1, x.shape[-1]), table

    def _loss(self, parameters, batch: mx.array, phases: mx.array, scale: mx.array) -> mx.array:
        x, table = self._hidden(parameters, batch[:, :-1], phases)
        return summed_loss(x, table, mx.flatten(batch[:, 1:]))[0] * scale

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
        scale = mx.array(1.0 / total_tokens)
        loss, gradient = self._loss_and_gradient(
            self.model.trainable_parameters(), mx.array(batch), phases, scale
        )
        if self._accumulated is not None:
            gradient = tree_map(mx.add, self._accumulated, gradient)
        self._accumulated = gradient
        mx.eval(loss, gradient)
        return loss.item() * total_tokens

    def gradient_norm(self) -> float:
        square = tree_reduce(lambda total, g: total + g.square().sum(), self._accumulated, 0.0)
        return mx.sqrt(square).item()

    def update(self, lr: float, norm: float | None = None) -> None:
        self._optimizer.learning_rate = lr
        norm = mx.array(self.gradient_norm() if norm is None else norm)
        parameters = self._apply(self.model.trainable_parameters(), self._accumulated, norm)
        self.discard()
        self.model.update(parameters)
        mx.eval(self.model.parameters(), self._optimizer.state)

    def discard(self) -> None:
        self._accumulated = None

    def evaluate(self, batch: np.ndarray, mask: np.ndarray) -> float:
        phases = self._phases_of(batch.shape[1] - 1)
        losses = self._token_losses(self.model.trainable_parameters(), mx.array(batch), phases)
        return float(np.array(losses, np.float64)[mask.reshape(-1)].sum())

    def weights(self) -> dict[str, np.ndarray]:
        return named_weights(self.model)

    def optimizer(self) -> dict[str, np.ndarray]:
        record = {"step": np.array(self._optimizer.optimizers[0].step.item(), np.int64)}
        moments = {}
        for part in self._optimizer.optimizers:
            moments |= {
                k: v for k, v in tree_flatten(part.state) if k not in ("step", "learning_rate")
            }
        for name in parameter_table(self.model.config):
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


def _step_function(model: Model, tokens: int) -> Callable:
    """One token through the model, compiled where about so many tokens earn it back."""

    def step(ids: mx.array, phases: mx.array, memories: list[mx.array]):
        hidden, memories = model.hidden(ids, phases, memories)
        x, table = model.embedding.head(hidden[:, -1])
        return (x @ table.T).astype(mx.float32), memories

    worth_it = mx.default_device() == mx.gpu or tokens >= COMPILED_FROM  # seconds on a CPU
    return mx.compile(step, inputs=model.state) if worth_it and can_compile() else step


class Decoder:
    """Texts being continued, see `mlx_pam.backend.Decoder`."""

    def __init__(self, model: Model, tokens: int = 0):
        self.model = model
        self._memories: list[mx.array] = []
        self._positions = np.zeros(0, np.int64)
        self._step = _step_function(model, tokens)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        lengths = np.array([len(prompt) for prompt in prompts])
        ids = np.zeros((len(prompts), lengths.max()), np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt  # padding comes last and leaves the memory as it was
        rows, memories, last = np.arange(len(prompts)), None, None
        for start in range(0, ids.shape[1], PREFILL_TOKENS):
            positions = np.arange(start, min(start + PREFILL_TOKENS, ids.shape[1]))
            inside = positions < lengths[:, None]  # [B, T]
            mask = None if inside.all() else mx.array(inside)
            memories = memories and self._with_room(memories, ids.shape[1])
            hidden, memories = self.model.hidden(
                mx.array(ids[:, positions]), self.model.phases(positions), memories, mask
            )
            final = np.clip(lengths - 1 - start, 0, len(positions) - 1)
            here = hidden[mx.array(rows), mx.array(final)]  # [B, (2,) D]
            ends_here = mx.array(inside.any(axis=1)).reshape(-1, *[1] * (here.ndim - 1))
            last = here if last is None else mx.where(ends_here, here, last)
            mx.eval(last, memories)
        self._memories, self._positions = memories, lengths.astype(np.int64)
        x, table = self.model.embedding.head(last)
        return np.array((x @ table.T).astype(mx.float32))

    def step(self, tokens: np.ndarray) -> np.ndarray:
        phases = self.model.phases(self._positions[:, None])
        ids = mx.array(np.asarray(tokens, np.int32)[:, None])
        self._positions = self._positions + 1
        self._memories = self._with_room(self._memories, int(self._positions.max()))
        logits, self._memories = self._step(ids, phases, self._memories)
        mx.eval(logits, self._memories)
        return np.array(logits)

    def _with_room(self, memories: list[mx.array], tokens: int) -> list[mx.array]:
        """The memories with room for so many tokens; only a transformer's ever have to grow."""
        shapes = state_shapes(self.model.config, memories[0].shape[0], room(tokens)).values()
        return [_grown(memory, shape) for memory, shape in zip(memories, shapes, strict=True)]

    def state(self) -> dict[str, np.ndarray]:
        tokens = int(self._positions.max(initial=0))
        shapes = state_shapes(self.model.config, len(self._positions), tokens)
        memories = {
            name: np.array(memory[tuple(map(slice, shape))])
            for (name, shape), memory in zip(shapes.items(), self._memories, strict=True)
        }
        return memories | {"positions": self._positions}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._memories = [mx.array(x) for x in checked_state(self.model.config, state)]
        self._positions = np.asarray(state["positions"], np.int64)


class MLXBackend:
    """MLX on this machine's Metal GPU, CUDA GPU or CPU, see `mlx_pam.backend.Backend`."""

    name = "mlx"
    team = processes.Alone()
    forms = tuple(FORMS)
    Learner = Learner
    Decoder = Decoder

    @cached_property
    def description(self) -> str:
        device = (
            "Metal"
            if mx.metal.is_available()
            else "CUDA"
            if mx.default_device() == mx.gpu
            else "CPU"
        )
        chip = platform.processor() or platform.machine()
        line = f"MLX {version('mlx')} on {device} ({chip})"
        return f"{line}, {blas.preload()}" if device == "CPU" else line

    def build(
        self, config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None, seed: int = 0
    ) -> nn.Module:
        model = build_model(config)
        set_weights(model, initial_weights(config, seed) if weights is None else weights)
        return model

    def weights(self, model: nn.Module) -> dict[str, np.ndarray]:
        return named_weights(model)

    def retrieve_with_gradients(
        self, inputs: Sequence[np.ndarray], cotangents: Sequence[np.ndarray], form: str, dtype: str
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        q, k, v, log_decay, state = (mx.array(x, mx.float32) for x in inputs)
        primals = [*(x.astype(DTYPES[dtype]) for x in (q, k, v)), log_decay, state]
        dy, dstate = (mx.array(x, mx.float32) for x in cotangents)
        outputs, gradients = mx.vjp(
            lambda *arrays: list(retrieve(*arrays, form=form)),
            primals,
            [dy.astype(DTYPES[dtype]), dstate],
        )
        return [_numpy(x) for x in outputs], [_numpy(x) for x in gradients]

    def peak_memory(self) -> int:
        unit = (
            1 if platform.system() == "Darwin" else 1024
        )  # ru_maxrss is in bytes on macOS, else in kilobytes
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, mx.get_peak_memory())


def named_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Copies of the model's weights by name."""
    return {name: np.array(value) for name, value in tree_flatten(model.trainable_parameters())}


def set_weights(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Put named weights, already checked against `parameter_table`, into the model."""
    model.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))
    mx.eval(model.parameters())


def _grown(memory: mx.array, shape: tuple[int, ...]) -> mx.array:
    if memory.shape == shape:
        return memory
    more = [(0, new - old) for new, old in zip(shape, memory.shape, strict=True)]
    return mx.pad(memory, more)


def _numpy(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32))
