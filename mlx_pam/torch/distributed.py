"""One run on several processes: each takes its rows of every batch, and all take the same step.

DDP keeps the whole model in each process; FSDP2 divides it. Data, schedule and checkpoints are
those of a single process. The functions here communicate: every process calls the same ones in the
same order. In a process that runs alone they change nothing.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mlx_pam import outcome
from mlx_pam.errors import BackendError
from mlx_pam.torch.models import Model

PATIENCE = timedelta(hours=2)  # the others wait while the main process tokenises or saves

T = TypeVar("T")


def join() -> None:
    """Meet the other processes that torchrun started, and take the GPU that is this one's."""
    if dist.is_initialized():
        return
    if torch.cuda.is_available():
        gpus, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", 0))
        if local >= gpus:
            raise BackendError(
                f"processes on a machine must be at most its GPUs, {gpus}, got number {local + 1}: "
                "lower --nproc-per-node"
            )
        torch.cuda.set_device(local)
    # gloo carries what is on the host: flags, losses, objects
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)


def size() -> int:
    """Processes that work together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this is the process that keeps what all have put together."""
    return size() == 1 or dist.get_rank() == 0


def total(value: float) -> float:
    """The sum of the processes' values, the same in each to the bit."""
    if size() == 1:
        return value
    summed = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(summed)
    return summed.item()


def share(batch: np.ndarray) -> np.ndarray:
    """This process's rows of a batch."""
    return batch[dist.get_rank() :: size()] if size() > 1 else batch


def agreed(x: Tensor) -> Tensor:
    """The main process's values, where rounding may differ and a decision hangs on them."""
    if size() > 1:
        x = x.contiguous()
        dist.broadcast(x, 0)
    return x


class Team:
    """The processes that share a run, see `mlx_pam.backend.Team`."""

    def any_of(self, flag: bool) -> bool:
        return total(float(flag)) > 0

    def on_main(self, work: Callable[[], T]) -> T:
        message = outcome.message(work) if is_main() else b""
        length = torch.tensor(len(message))
        dist.broadcast(length, 0)
        sent = torch.frombuffer(bytearray(message.ljust(int(length))), dtype=torch.uint8)
        dist.broadcast(sent, 0)
        return outcome.receive(sent.numpy().tobytes())

    def main_first(self, work: Callable[[], T]) -> T:
        if is_main():
            try:
                return work()
            finally:
                self.any_of(False)
        self.any_of(False)
        return work()

    def leave(self) -> None:
        dist.destroy_process_group()


class _Hidden(nn.Module):
    """A model whose forward pass is `hidden`: DDP looks for its work there."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, phases: Tensor, recompute: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        return self.model.hidden(ids, phases, recompute=recompute)


def spread(model: Model) -> Callable[..., tuple[Tensor, list[Tensor]]]:
    """`model.hidden`, whose backward pass leaves the mean of the processes' gradients."""
    if size() == 1 or _is_sharded(model):
        return model.hidden
    torch._dynamo.config.optimize_ddp = False  # it cuts graphs at buckets; a block is small enough
    return DistributedDataParallel(_Hidden(model), gradient_as_bucket_view=True)


def reduction(hidden: Callable, due: bool) -> contextlib.AbstractContextManager:
    """Surrounds a micro-batch: DDP reduces the gradients of an update once, in its last one.

    FSDP reduces them in each, since whole gradients of the model would not fit.
    """
    waits = isinstance(hidden, DistributedDataParallel) and not due
    return hidden.no_sync() if waits else contextlib.nullcontext()


# FSDP2: weights, gradients and moments are DTensors


def shard(model: Model, device: torch.device) -> None:
    """Divide a model among the processes, on their devices; a block is made whole while it works.

    A scalar becomes a vector of one number, since FSDP2 divides no scalars.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 0:
                setattr(module, name, nn.Parameter(parameter.detach()[None]))
    # no caller works in place on what a block returns
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = dist.init_device_mesh(device.type, (size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "hidden")


@contextlib.contextmanager
def made_whole(module: nn.Module) -> Iterator[None]:
    """Inside, a model's own weights, or a block's, are whole, to be used past its forward pass."""
    if not _is_sharded(module):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def parameters(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Weights by name, as the optimizer knows them."""
    if _is_sharded(model):
        model.reshard()  # evaluation leaves embedding and head whole
    return model.named_parameters()


def whole(x: Tensor) -> Tensor:
    """A tensor put together from its shards."""
    return x.full_tensor() if _is_shard(x) else x


def like(x: Tensor, other: Tensor) -> Tensor:
    """x on the device of `other`, and divided as that is."""
    x = x.to(other.device)
    if not _is_shard(other):
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.reshape(other.shape), other.device_mesh, other.placements)


def _is_sharded(module: nn.Module) -> bool:
    if size() == 1:
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _is_shard(x: Tensor) -> bool:
    if size() == 1:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor)
