"""A MODEL of how long the operator and a decoded token take: it predicts, and measures nothing.

    python -m mlx_pam.benchmarks.cost_tables --chip m4-max

What runs is a list of parts, one after the other. A part does so many operations of matrix
products, moves so many bytes between memory and processor, and starts so many kernels:

    seconds = sum over parts  max(operations / rate, bytes / bandwidth) + kernels * kernel_seconds

Assumed:

1. A part reads each of its inputs once from memory and writes each result once; no cache carries
   anything from one part to the next.
2. Pointwise work between two products is one pass over what it reads and writes, as a compiler
   makes it, and its arithmetic is free.
3. Gradients: each product has two of its own size, and each pass twice the traffic. Forward and
   backward by separate operations are three forward passes, as in `flops.py`.
4. The fused kernels read q, k, v and the state before each chunk and write y and the state, and
   no scores. Tiles of 8 x 8 scores that lie in the future are left out.
5. Decoding reads every weight once, and reads and writes the state, or reads the cache.
6. A training step adds the maps, what lies between them (each array is written once and read
   once, in the forward pass and twice in the backward one), the head's logits likewise, and AdamW,
   which moves seven float32 numbers a weight. Its kernels are not counted: it is a bound.
7. Of what is published of a chip the shares below are reached. Types of 16 bits halve the bytes;
   products keep the float32 rate, for the lanes are the same.

Not in it: heat, other processes, the fixed cost of a command buffer, caches that hold a state.

B batch   T time   H heads   d head width   C tokens of a chunk   n chunks of a span
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mlx_pam.benchmarks import flops
from mlx_pam.benchmarks.chips import Chip
from mlx_pam.config import MemoryConfig, ModelConfig
from mlx_pam.decoder_state import state_shapes
from mlx_pam.parameters import parameter_count

FLOAT32 = 4  # bytes
TILE = 8  # rows and columns of the matrices that Metal multiplies

BANDWIDTH_SHARE = 0.85  # MLX's copies on an M4 Max: 466 of 546 GB/s (ml-explore/mlx#2151)
PRODUCT_SHARE = 0.7  # Apple's float32 product on an M4: 2.9 of 4.0 TFLOP/s (arXiv 2502.05317)
KERNEL_SHARE = 0.4  # the fused kernels' products: assumed
KERNEL_SECONDS = 2.7e-6  # 3200 small kernels, each waiting: 8.8 ms (ml-explore/mlx#4521)

CHUNKS_PER_SPAN = 32
KERNELS = {  # of separate operations, in a token or a span: forward, and with its gradients
    "recurrent": (12, 59),
    "parallel": (58, 130),
    "chunkwise": (58, 137),
}


@dataclass(frozen=True)
class Part:
    """What is done before the next thing can begin."""

    name: str
    operations: float = 0.0
    bytes: float = 0.0
    kernels: float = 0.0
    fused: bool = False
    """Whether its products are those of our own kernels."""

    def times(self, factor: float) -> Part:
        """The work of so many of it, in as many kernels."""
        return replace(self, operations=factor * self.operations, bytes=factor * self.bytes)


@dataclass(frozen=True)
class Rates:
    """What a machine does in a second."""

    name: str
    product: float
    """Operations/s of a large product."""
    fused: float
    """Operations/s of the fused kernels' products."""
    bandwidth: float
    """Bytes/s."""
    kernel_seconds: float
    """Of a kernel that waits for the one before."""


@dataclass(frozen=True)
class Shape:
    """Inputs of the operator, complex: q, k, v `[B, T, H, 2, d]` of so many bytes a number."""

    batch: int
    time: int
    heads: int
    d: int
    number: int = FLOAT32

    @property
    def rows(self) -> int:
        """Tokens times heads."""
        return self.batch * self.time * self.heads

    @property
    def row(self) -> int:
        """Bytes of one row of q, k, v or y."""
        return 2 * self.d * self.number

    @property
    def state(self) -> int:
        """Bytes of one head's state."""
        return 2 * self.d**2 * FLOAT32


def published(chip: Chip) -> Rates:
    """What a chip does if it reaches the assumed shares of what is published."""
    return Rates(
        f"{chip.name}, {chip.cores} GPU cores, published",
        product=PRODUCT_SHARE * chip.flops,
        fused=KERNEL_SHARE * chip.flops,
        bandwidth=BANDWIDTH_SHARE * chip.bandwidth,
        kernel_seconds=KERNEL_SECONDS,
    )


def seconds(parts: Iterable[Part], rates: Rates) -> float:
    """The equation at the head of this file."""

    def one(part: Part) -> float:
        rate = rates.fused if part.fused else rates.product
        return max(part.operations / rate, part.bytes / rates.bandwidth)

    return sum(one(part) + part.kernels * rates.kernel_seconds for part in parts)


def operator(
    form: str, shape: Shape, chunk: int, backward: bool = False, kernels: float | None = None
) -> list[Part]:
    """The parts of one call of `retrieve`, forward, or forward and backward.

    chunk: C of the forms that have one.  kernels: if they have been counted, so many in all.
    """
    passes = 3 if backward else 1
    if form == "fused":
        parts = _fused(shape, chunk, backward)
    elif form == "recurrent":
        parts = [_tokens(shape).times(passes)]
    else:
        whole = form == "parallel"
        size, most = (shape.time, 1) if whole else (min(chunk, shape.time), CHUNKS_PER_SPAN)
        parts = [part.times(passes) for part in _separate(shape, size, most)]
    if kernels is None:
        kernels = _kernels(form, shape, chunk, backward)
    share = kernels / len(parts)
    return [replace(part.times(shape.rows), kernels=share) for part in parts]


def _separate(shape: Shape, c: int, most: int) -> list[Part]:
    """The dual form in chunks of c tokens by separate operations, for one token of one head."""
    n = min(-(-shape.time // c), most)
    d, row, state, b = shape.d, shape.row, shape.state, shape.number
    block = 2 * d * d * b  # bytes of a state in the type of the inputs
    return [
        Part("layout", bytes=6 * row),  # q, k, v by heads and chunks
        Part("decays", bytes=5 * c * FLOAT32),  # masked steps, their sums, their exponentials
        Part("writes", 8 * d * d, 4 * row + 5 * block / c),
        Part("carry", 4 * n * d * d / c, 6 * state / c),
        Part("scores", 8 * c * d, 6 * row + 2 * c * b),
        Part("weights", bytes=4 * c * b + 2 * c * FLOAT32),
        Part("values", 8 * c * d, 6 * row + 2 * c * b),
        Part("reads", 8 * d * d, 4 * row + 5 * block / c),
        Part("sum", bytes=3 * row),
    ]


def _tokens(shape: Shape) -> Part:
    """One token of one head by separate operations: the state is read, written, and read again."""
    return Part("tokens", 16 * shape.d**2, 3 * shape.state + 4 * shape.row)


def _fused(shape: Shape, chunk: int, backward: bool) -> list[Part]:
    """Kernels: the states between chunks, then the outputs; in the backward pass the states again,
    their adjoints, and all gradients at once. For one token of one head.

    Inside a chunk a token meets (C + 8) / 2 others on average, whole tiles counted.
    """
    c = min(chunk, shape.time)
    d, row, state = shape.d, shape.row, shape.state
    product = 8 * d * (c + TILE) / 2  # scores or their use
    scan = Part("states", 8 * d * d, 2 * row + state / c, fused=True)
    parts = [scan, Part("outputs", 8 * d * d + 2 * product, 4 * row + state / c, fused=True)]
    if backward:
        gradients = Part("gradients", 24 * d * d + 5 * product, 7 * row + 2 * state / c, fused=True)
        parts += [replace(scan, name="states again"), replace(scan, name="adjoints"), gradients]
    return parts


def _kernels(form: str, shape: Shape, chunk: int, backward: bool) -> float:
    if form == "fused":
        return 5 if backward else 2
    each = KERNELS[form][backward]
    if form == "recurrent":
        return each * shape.time
    return each if form == "parallel" else each * -(-shape.time // (chunk * CHUNKS_PER_SPAN))


def decode(config: ModelConfig, context: int, kernels: float, number: int = FLOAT32) -> list[Part]:
    """One token of one text behind a context, started as so many kernels.

    number: bytes of one of the weights; what the model remembers and the logits are float32.
    Weights are read once; an embedding is one row, but the tied head reads the whole table.
    """
    c = config
    state = sum(FLOAT32 * _size(shape) for shape in state_shapes(c, 1, context).values())
    weights = number * parameter_count(c) + FLOAT32 * c.vocab_size  # and the logits
    if isinstance(c, MemoryConfig):
        counts = flops.pam(c, 1, chunk=1)
        memory = Part("state", 16 * c.memory_dim * c.head_dim * c.num_layers, 2 * state)
        products = counts["total"] - counts["memory"]
    else:
        counts = flops.transformer(c, context + 1)
        memory = Part("cache", 4 * (context + 1) * c.memory_dim * c.num_layers, state)
        products = counts["total"] - counts["attention"]
    return [Part("weights", products, weights, kernels), memory]


def decode_kernels(config: MemoryConfig) -> int:
    """Kernels of a token where the whole step runs in our own, as `models.decode` has them."""
    return 5 * config.num_layers + 3


def training(
    config: MemoryConfig, form: str, batch: int, time: int, chunk: int, number: int = FLOAT32
) -> list[Part]:
    """A whole step of a PAM on `[B, T]` tokens: forward, backward, AdamW."""
    c, tokens = config, batch * time
    counts = flops.pam(c, time, chunk=chunk)
    between = c.num_layers * (12 * c.dim + 6 * c.hidden_dim + 8 * c.memory_dim)  # numbers a token
    weights = parameter_count(c)
    shape = Shape(batch, time, c.num_heads, c.head_dim, number)
    memory = operator(form, shape, chunk, backward=True, kernels=0)
    return [
        Part("maps", 3 * tokens * (counts["maps"] + counts["gates"]), 3 * number * weights),
        *(replace(part.times(c.num_layers), name=f"memory: {part.name}") for part in memory),
        Part("between", bytes=6 * tokens * between * number),
        Part("head", 3 * tokens * counts["head"], 6 * tokens * c.vocab_size * number),
        Part("optimizer", bytes=7 * FLOAT32 * weights),
    ]


def _size(shape: Iterable[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
