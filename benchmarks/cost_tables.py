"""The cost MODEL's predictions as tables: nothing here is measured.

python -m mlx_pam.benchmarks.cost_tables --chip m4-max --scale 100m --dtype bfloat16
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from mlx_pam.benchmarks import chips, cost_model
from mlx_pam.benchmarks.cost_model import Part, Rates, Shape
from mlx_pam.config import PRESETS

FORMS = ("parallel", "chunkwise", "fused")
LENGTHS = (512, 1024, 2048, 4096, 8192)
CONTEXTS = (0, 2048, 8192, 32768)
NUMBERS = {"float32": 4, "bfloat16": 2}
CHUNKS = {"chunkwise": lambda d: 32 if d < 32 else 64, "fused": lambda d: 32}
"""C of each form, as `ops.retrieval` and `ops.metal.launch` have it."""


def chunk_of(form: str, d: int) -> int:
    """Tokens of a chunk; the parallel form's one chunk is as long as the text."""
    return CHUNKS[form](d) if form in CHUNKS else 0


def parts_table(title: str, parts: Iterable[Part], rates: Rates) -> Table:
    """What each part does, how long it takes, and what binds it."""
    table = _table(title, "part", "GFLOP", "MB", "kernels", "us", "bound by")
    for part in parts:
        seconds = cost_model.seconds([part], rates)
        limits = {
            "operations": part.operations / (rates.fused if part.fused else rates.product),
            "bytes": part.bytes / rates.bandwidth,
            "kernels": part.kernels * rates.kernel_seconds,
        }
        sizes = part.operations / 1e9, part.bytes / 1e6, part.kernels, 1e6 * seconds
        table.add_row(part.name, *(f"{x:,.1f}" for x in sizes), max(limits, key=limits.get))
    return table


def operator_table(scale: str, dtype: str, tokens: int, rates: Rates) -> Table:
    """Milliseconds of a call, by window and form, forward and with gradients."""
    table = _table(f"operator, {scale}, {dtype}: ms", "T", "batch", "pass", *FORMS)
    for time in LENGTHS:
        batch = max(1, tokens // time)
        for backward, name in ((False, "forward"), (True, "with gradients")):
            cells = [call(form, scale, dtype, batch, time, backward, rates) for form in FORMS]
            table.add_row(str(time), str(batch), name, *cells)
    return table


def call(
    form: str, scale: str, dtype: str, batch: int, time: int, backward: bool, rates: Rates
) -> str:
    """Milliseconds of one call of the operator."""
    heads = PRESETS["pam"][scale]
    shape = Shape(batch, time, heads.num_heads, heads.head_dim, NUMBERS[dtype])
    chunk = chunk_of(form, heads.head_dim)
    return milliseconds(cost_model.operator(form, shape, chunk, backward), rates)


def decode_table(scale: str, rates: Rates) -> Table:
    """Milliseconds of a token by context, its kernels counted in the graph that MLX has here."""
    from mlx_pam.benchmarks import dispatches

    pam, transformer = (PRESETS[family][scale] for family in ("pam", "transformer"))
    columns = [
        ("PAM in kernels", pam, cost_model.decode_kernels(pam)),
        ("PAM here", pam, dispatches.of_a_token(pam)),
        ("transformer", transformer, dispatches.of_a_token(transformer)),
    ]
    names = [f"{name}, {kernels} kernels" for name, _, kernels in columns]
    table = _table(f"a decoded token, {scale}, float32: ms", "context", *names)
    for context in CONTEXTS:
        cells = [
            milliseconds(cost_model.decode(config, context, kernels), rates)
            for _, config, kernels in columns
        ]
        table.add_row(f"{context:,}", *cells)
    return table


def milliseconds(parts: Iterable[Part], rates: Rates) -> str:
    """What the model says, in three digits."""
    value = 1e3 * cost_model.seconds(parts, rates)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"MODEL: {title}", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        left = name in ("part", "pass", "bound by")
        table.add_column(name, justify="left" if left else "right")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--chip", default="m4-max", choices=chips.BY_WORD, metavar="CHIP", help="e.g. m1, m3-pro")
    add("--scale", default="100m", choices=PRESETS["pam"])
    add("--dtype", default="float32", choices=NUMBERS)
    add("--seq-len", type=int, default=2048, help="window of the tables of parts")
    add("--tokens", type=int, default=8192, help="tokens in a call")
    options = parser.parse_args()
    console = Console()
    rates = cost_model.published(chips.BY_WORD[options.chip])
    console.print(f"MODEL, {rates.name}: predictions, not measurements", highlight=False)
    heads, time = PRESETS["pam"][options.scale], options.seq_len
    batch = max(1, options.tokens // time)
    shape = Shape(batch, time, heads.num_heads, heads.head_dim, NUMBERS[options.dtype])
    size = f"{options.scale}, {options.dtype}, {batch} x {time} tokens"
    for form in FORMS:
        chunk = chunk_of(form, heads.head_dim)
        parts = cost_model.operator(form, shape, chunk, backward=True)
        console.print(parts_table(f"{form}, with gradients, {size}", parts, rates))
    chunk = chunk_of("fused", heads.head_dim)
    parts = cost_model.training(heads, "fused", batch, time, chunk, NUMBERS[options.dtype])
    step = cost_model.seconds(parts, rates)
    title = f"training step, {size}: at most {batch * time / step:,.0f} tokens/s"
    console.print(parts_table(title, parts, rates))
    console.print(operator_table(options.scale, options.dtype, options.tokens, rates))
    console.print(decode_table(options.scale, rates))


if __name__ == "__main__":
    main()
