"""The fused form in a process of its own: on a GPU, or in Triton's interpreter on the CPU.

The interpreter is chosen in the environment before Triton is first imported, and then for good: no
other test should meet it. It is made as inexact as a GPU: products round their factors as tensor
cores do, and exponentials are off by as much as CUDA allows. As it comes it multiplies TF32 as
float32, and bfloat16 by the bits.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import oracle
from drawing import Inputs, answer, draw

DEVICES = {"interpreter": "cpu", "gpu": "cuda"}


def start(machine: str) -> ProcessPoolExecutor:
    """A pool of one process, whose tensors lie on DEVICES[machine]."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, initializer=_enter, initargs=(machine,))


class Found(NamedTuple):
    """What the fused form gives: outputs (y, final state), gradients, and their types."""

    y: np.ndarray
    state: np.ndarray
    gradients: oracle.Gradients
    dtypes: list[str]


def fused(
    inputs: Inputs,
    dy: np.ndarray,
    dstate: np.ndarray,
    dtype: str = "float32",
    cuts: tuple[int, ...] = (),
    wrap: Callable[[Any], Any] = lambda function: function,
) -> Found:
    """Values and gradients of the sequence, in pieces that hand on their state if it is cut."""
    leaves = tensors(inputs, dtype)
    for leaf in leaves:
        leaf.requires_grad_()
    outputs = wrap(_in_pieces)(*leaves, cuts)
    cotangents = [tensor(dy, dtype), tensor(dstate)]
    gradients = _torch().autograd.grad(outputs, leaves, cotangents)
    dtypes = [str(x.dtype).removeprefix("torch.") for x in (*outputs, *gradients)]
    return Found(*map(array, outputs), oracle.Gradients(*map(array, gradients)), dtypes)


def errors(
    is_complex: bool,
    time: int,
    dim: int,
    decay: float | str,
    dtype: str = "float32",
    cuts: tuple[int, ...] = (),
    heads: int = 2,
    batch: int = 2,
) -> dict[str, float]:
    """Relative errors by name, on random inputs as dtype holds them."""
    inputs, dy, dstate = draw(is_complex, time, dim, decay, batch, heads)
    rows = (array(tensor(x, dtype)) for x in inputs[:3])
    inputs, dy = Inputs(*rows, *inputs[3:]), array(tensor(dy, dtype))
    found = fused(inputs, dy, dstate, dtype, cuts)
    return differences(found, answer(inputs, dy, dstate))


def differences(found: Found, expected: Any) -> dict[str, float]:
    """Relative errors by name."""
    pairs = {"y": (found.y, expected.y), "final state": (found.state, expected.state)}
    for name, *pair in zip(
        oracle.Gradients._fields, found.gradients, expected.gradients, strict=True
    ):
        pairs[f"gradient of {name}"] = tuple(pair)
    return {name: oracle.relative_error(*pair) for name, pair in pairs.items()}


def values(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """y and the final state, without gradients."""
    with _torch().inference_mode():
        return tuple(map(array, _in_pieces(*tensors(inputs), ())))


def tensor(x: np.ndarray, dtype: str = "float32") -> Any:
    torch = _torch()
    return torch.from_numpy(np.array(x, np.float32)).to(DEVICE, getattr(torch, dtype))


def tensors(inputs: Inputs, dtype: str = "float32") -> list[Any]:
    return [*(tensor(x, dtype) for x in inputs[:3]), tensor(inputs.log_decay), tensor(inputs.state)]


def array(x: Any) -> np.ndarray:
    return x.detach().float().cpu().numpy()


def _in_pieces(q, k, v, log_decay, state, cuts):
    from mlx_pam.torch.ops.retrieval import retrieve

    pieces, edges = [], [0, *cuts, q.shape[1]]
    for start, stop in pairwise(edges):
        rows = (x[:, start:stop] for x in (q, k, v, log_decay))
        y, state = retrieve(*rows, state, form="fused")
        pieces.append(y)
    return _torch().cat(pieces, dim=1), state


def _torch():
    import torch

    return torch


def _enter(machine: str) -> None:
    global DEVICE
    DEVICE = DEVICES[machine]
    os.environ["TORCH_COMPILE_DISABLE"] = "0"
    _torch().set_num_threads(1)
    if machine == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
        _compute_as_a_gpu()


def _compute_as_a_gpu() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def is_bfloat16(x: Any) -> bool:
        return x.dtype.scalar == tl.bfloat16

    def numbers(x: Any) -> np.ndarray:
        return _from_bfloat16(x.data) if is_bfloat16(x) else x.data.astype(np.float32)

    def of_numbers(method):
        def arithmetic(self, *arguments):
            *operands, operation = arguments
            if not is_bfloat16(operands[0]):
                return method(self, *operands, operation)
            return TensorHandle(_to_bfloat16(operation(*map(numbers, operands))), tl.bfloat16)

        return arithmetic

    def dot(self, a, b, total, precision, max_num_imprecise_acc):
        x, y = numbers(a), numbers(b)
        if precision.name == "TF32x3":
            products = _tf32x3(x, y)
        elif precision.name == "TF32" and not is_bfloat16(a):
            products = _tf32(x) @ _tf32(y)
        else:
            products = x @ y
        return TensorHandle(total.data + products, total.dtype.scalar)

    def exp(self, x):
        exact = np.exp(x.data)
        off = exact * np.float32(1 + 2.0**-22)  # as ex2.approx may be
        return TensorHandle(np.where(x.data == 0, exact, off), x.dtype.scalar)

    InterpreterBuilder.create_exp = exp
    InterpreterBuilder.unary_op = of_numbers(InterpreterBuilder.unary_op)
    InterpreterBuilder.binary_op = of_numbers(InterpreterBuilder.binary_op)
    InterpreterBuilder.create_dot = dot


def _tf32(x: np.ndarray) -> np.ndarray:
    """The tensor cores do not look at the last 13 bits."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _tf32x3(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Products of what TF32 holds of x and y, and of each with what is left of the other."""
    x_big, y_big = (_tf32((z.view(np.uint32) + np.uint32(0x1000)).view(np.float32)) for z in (x, y))
    x_small, y_small = _tf32(x - x_big), _tf32(y - y_big)
    return x_small @ y_big + x_big @ y_small + x_big @ y_big


def _from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
