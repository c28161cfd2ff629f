"""How much memory training takes at its peak: a model, whose numbers were measured.

n tokens of a micro-batch in one process   L blocks   P parameters   V vocabulary   T window
z, h, m numbers that a token has in the residual stream, inside the gated unit, in all heads
C tokens of a chunk   H heads   E = 4 V z, the table in float32
S a slice of logits, in float32 and in bfloat16 too where that is the arithmetic

    states       12 P                       weights and both moments
    activations  L b + r b                  b = n k + w: k bytes a token, w of weights, in a block
    or           4 L n z + r b              with gradient checkpointing
    loss         2 S + 2 E                  the gradients of the head are made together with it
    update       4 P, in MLX 16 P           gradients; MLX has the new weights beside the old

`docs/memory.md` says how the numbers were come by and how far off they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlx_pam.config import MemoryConfig, ModelConfig, PAMConfig, TrainConfig
from mlx_pam.errors import ConfigError
from mlx_pam.parameters import parameter_count, parameter_table

FLOAT32 = 4  # bytes
BYTES = {"float32": 4, "bfloat16": 2}
FUSED = ("metal", "cuda")  # devices whose memories run in kernels, which keep no scores
SLICE_NUMBERS = {"mlx": 1 << 24, "torch": 1 << 23}  # logits at once, as `ops.loss` has them
GPU_SLICE_NUMBERS = {"mlx": 1 << 24, "torch": 1 << 26}
# what the libraries themselves take of a CPU's memory, PyTorch with its compiler
PROCESS = {"mlx": 130_000_000, "torch": 560_000_000}
# blocks' worth of memory at work beside what is kept; and where blocks are computed anew
WORKING = {"mlx": 0.4, "torch": 0.4}
ANEW = {"mlx": 1.75, "torch": 1.75}


@dataclass(frozen=True)
class Kept:
    """Bytes that a block keeps for each number that a token has there."""

    width: float
    """Of z and h together."""
    heads: float
    """Of m."""
    fused: float = 0.0
    """Of m where the memory runs in kernels."""
    scores: float = 0.0
    """Of the scores outside kernels: H C, or H T with a transformer on MLX."""


KEPT = {  # least squares through counts in blocks of several widths; docs/memory.md
    ("mlx", "pam", "float32"): Kept(45.3, 61.2, 26.8, 16.6),
    ("mlx", "pam", "bfloat16"): Kept(24.3, 34.1, 14.7, 12.8),
    ("mlx", "sam", "float32"): Kept(21.7, 42.9, 28.0, 9.7),
    ("mlx", "sam", "bfloat16"): Kept(12.5, 24.7, 15.7, 8.9),
    ("mlx", "transformer", "float32"): Kept(20.4, 25.9, scores=5.0),
    ("mlx", "transformer", "bfloat16"): Kept(11.6, 14.7, scores=2.3),
    ("torch", "pam", "float32"): Kept(15.6, 69.8, 29.0, 8.5),
    ("torch", "pam", "bfloat16"): Kept(12.8, 34.8, 14.6, 6.6),
    ("torch", "sam", "float32"): Kept(15.0, 47.6, 29.2, 8.8),
    ("torch", "sam", "bfloat16"): Kept(8.0, 23.7, 15.1, 6.6),
    ("torch", "transformer", "float32"): Kept(13.2, 24.1),
    ("torch", "transformer", "bfloat16"): Kept(7.2, 12.1),
}


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one process."""

    states: int
    """Weights and both moments."""
    activations: int
    """What is kept for the backward pass."""
    total: int
    """All that is held at the peak."""


def estimate(
    model: ModelConfig, config: TrainConfig, library: str, device: str, processes: int = 1
) -> Footprint:
    """The footprint of a run by the equations above; variants count as the family they vary."""
    tokens = config.batch_size // processes * config.seq_len
    parameters = parameter_count(model) // (processes if config.parallel == "fsdp" else 1)
    width = _planes(model) * model.dim
    head = FLOAT32 * model.vocab_size * width
    block = tokens * _kept(model, config, library, device) + _weights_kept(model, config)
    activations, working = model.num_layers * block, WORKING[library] * block
    if config.gradient_checkpointing:
        activations, working = FLOAT32 * model.num_layers * tokens * width, ANEW[library] * block

    states, gradients = 12 * parameters, 4 * parameters
    held = states + (gradients if config.accumulate > 1 else 0)
    if config.dtype == "bfloat16":
        held += BYTES[config.dtype] * parameter_count(model)  # copies of the weights
    peak = max(
        held + activations + max(_loss(model, config, tokens, library, device), head + working),
        held + gradients + 2 * head,
        states + gradients + (states if library == "mlx" else 0),
    )
    process = PROCESS[library] if device == "cpu" else 0
    return Footprint(states=states, activations=round(activations), total=round(peak) + process)


def largest_batch(
    model: ModelConfig,
    config: TrainConfig,
    library: str,
    device: str,
    room: int,
    processes: int = 1,
) -> int:
    """The largest micro-batch whose footprint is at most `room` bytes; 0 if none fits."""

    def fits(batch_size: int) -> bool:
        changed = replace(config, batch_size=batch_size)
        return estimate(model, changed, library, device, processes).total <= room

    most = 1
    while fits(most):
        most *= 2
    least = most // 2  # fits, or is 0
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def require_room(
    model: ModelConfig,
    config: TrainConfig,
    library: str,
    device: str,
    room: int,
    processes: int = 1,
) -> Footprint:
    """The footprint; raises `ConfigError`, which says what would fit, if it is beyond `room`.

    room: bytes of the machine, in whose place the run's own `memory_limit` stands if it has one.
    """
    limit = config.memory_limit
    room = room if limit is None else round(limit * 1e9)
    found = estimate(model, config, library, device, processes)
    if found.total <= room:
        return found
    fitting = {}  # with gradient checkpointing or without it: the first that fits
    for option, changed in _smaller(model, config, library, device, room, processes):
        size = estimate(model, changed, library, device, processes).total
        if size <= room:
            fitting.setdefault(changed.gradient_checkpointing, f"{option} ({_gigabytes(size)})")
    remedy = f"take {' or '.join(fitting.values()) or 'a smaller --scale or --seq-len'}"
    if limit is None:
        remedy += ", or say by --memory-limit that there is more"
    raise ConfigError(
        f"{'memory' if limit is None else 'memory_limit'} must be at least "
        f"{_gigabytes(found.total)} for this run, as estimated, got {_gigabytes(room)}: {remedy}"
    )


def _smaller(
    model: ModelConfig,
    config: TrainConfig,
    library: str,
    device: str,
    room: int,
    processes: int,
) -> Iterator[tuple[str, TrainConfig]]:
    """Runs of the same steps in less memory, and the options that make them, the fastest first."""
    windows = config.windows_per_step
    for checkpointing in sorted({config.gradient_checkpointing, True}):
        options = ["--gradient-checkpointing"] if checkpointing else []
        changed = replace(config, gradient_checkpointing=checkpointing)
        if options:
            yield options[0], changed
        accumulated = replace(changed, accumulate=max(2, config.accumulate))
        most = largest_batch(model, accumulated, library, device, room, processes)
        for size in range(min(most, config.batch_size - 1), 0, -1):
            if windows % size == 0 and size % processes == 0:
                options.append(f"--batch-size {size} --accumulate {windows // size}")
                changed = replace(changed, batch_size=size, accumulate=windows // size)
                yield " ".join(options), changed
                break


def _planes(model: ModelConfig) -> int:
    return 2 if isinstance(model, PAMConfig) else 1


def _kept(model: ModelConfig, config: TrainConfig, library: str, device: str) -> float:
    """k: bytes that a block keeps for a token."""
    kept = KEPT[library, model.model_type, config.dtype]
    inside = model.hidden_dim * _planes(model)
    width, heads = model.dim * _planes(model), model.memory_dim * _planes(model)
    size = kept.width * (width + inside)
    if not isinstance(model, MemoryConfig):
        return size + kept.heads * heads + kept.scores * model.num_heads * config.seq_len
    if device in FUSED:
        return size + kept.fused * heads
    chunk = 32 if model.head_dim < 32 else 64  # as `ops.retrieval.chunk_size` has it
    return size + kept.heads * heads + kept.scores * model.num_heads * chunk


def _weights_kept(model: ModelConfig, config: TrainConfig) -> float:
    """w: the real matrices [[re, -im], [im, re]] of a block's complex maps."""
    if not isinstance(model, PAMConfig):
        return 0.0
    matrices = sum(
        parameter.size
        for name, parameter in parameter_table(model).items()
        if name.startswith("layers.") and parameter.kind == "matrix"
    )
    return 2 * BYTES[config.dtype] * matrices / model.num_layers


def _loss(model: ModelConfig, config: TrainConfig, tokens: int, library: str, device: str) -> int:
    """2 S + 2 E: what the loss takes beside the activations."""
    slices = SLICE_NUMBERS if device == "cpu" else GPU_SLICE_NUMBERS
    width = model.dim * _planes(model)
    rows = min(tokens, max(slices[library] // model.vocab_size, width))
    number = FLOAT32 if config.dtype == "float32" else FLOAT32 + BYTES[config.dtype]
    return 2 * model.vocab_size * (number * rows + FLOAT32 * width)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
