"""What `mlx_pam bench` measures: the operator in every form, and decoding, for one machine's owner.

    python -m mlx_pam bench --quick

Rows are taken as in `run.py`: every form is a process of its own, they take turns, and a turn is
timed from a synchronised device to a synchronised device. Beside each row stands what the cost
MODEL of `cost_model.py` predicts, from the rates that are published for the chip or, where it is
not known, from those measured here at the same time.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlx_pam.benchmarks import chips, cost_model, machine, summary
from mlx_pam.benchmarks.rounds import Job, run_rounds
from mlx_pam.config import PRESETS, Scale, require, require_choice, require_count, require_range

SCALES: tuple[Scale, ...] = ("5m", "100m")
DTYPES = ("float32", "bfloat16")
CONTEXTS = (0, 2048, 8192, 32768)
SHORTEST = 512
BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Measure the memory's operator and decoding on this machine, beside a model of their cost.

    The operator runs in the forms parallel, chunkwise and fused, forward and with its gradients;
    the models decode behind contexts of many lengths. Every row has the median of a few rounds in
    which all take turns. What this machine cannot run is left out, with the reason.
    """

    part: Literal["all", "operator", "decode"] = "all"
    """Measure the operator, decoding, or both."""
    scale: Scale | None = None
    """Heads and models of this scale; by default 5m, and 100m if it need not be quick."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of q, k and v; by default both. Models decode in float32."""
    longest: int = 8192
    """Longest window of the operator, in tokens: 512, then twice as many, up to this."""
    tokens: int = 8192
    """Tokens in a call of the operator, of as many windows as they fill."""
    rounds: int = 5
    """Turns of each row."""
    seconds: float = 0.25
    """Least length of a turn."""
    quick: bool = False
    """5m alone, windows of 512 tokens, contexts to 2048, two short rounds: a minute on a CPU."""
    chunk: tuple[int, ...] = ()
    """Tokens of a chunk in the fused Metal kernels; may be repeated to compare some."""
    slab: int | None = None
    """Channels that the fused Metal kernels stage at once; by default their own choice."""
    chip: str = "auto"
    """Whose published rates the MODEL takes, e.g. m4-max; measured: the rates measured here."""
    threads: int | None = None
    """Threads on a CPU; by default one for each core."""
    backend: Literal["mlx", "torch"] = "mlx"
    """Array library that does the work."""
    json: Path | None = None
    """File for the record of all rows, with machine and versions, to be put into a report."""

    def __post_init__(self) -> None:
        require_choice("part", self.part, ("all", "operator", "decode"))
        require_choice("scale", self.scale, (None, *PRESETS["pam"]))
        require_choice("dtype", self.dtype, (None, *DTYPES))
        for name in ("longest", "tokens", "rounds"):
            require_count(name, getattr(self, name))
        require_range("seconds", self.seconds, 0.0, open_least=True)
        for chunk in self.chunk:
            # from 48 on, the gradients of complex heads need more than 32 KB of threadgroup memory
            require(chunk in range(8, 41, 8), "chunk", "a multiple of 8 up to 40", chunk)
        if self.slab is not None:
            require(self.slab in range(8, 129, 8), "slab", "a multiple of 8 up to 128", self.slab)
        require_choice("chip", self.chip, ("auto", "measured", *chips.BY_WORD))
        if self.threads is not None:
            require_count("threads", self.threads)
        require_choice("backend", self.backend, ("mlx", "torch"))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Windows of the operator."""
        if self.quick or self.longest < SHORTEST:
            return (min(SHORTEST, self.longest),)
        powers = itertools.takewhile(
            lambda length: length <= self.longest, (SHORTEST << i for i in itertools.count())
        )
        return tuple(powers)

    @property
    def scales(self) -> tuple[Scale, ...]:
        if self.scale is not None:
            return (self.scale,)
        return SCALES[:1] if self.quick else SCALES


@dataclass(frozen=True)
class Row:
    """One thing to measure, and its settings as the record says them."""

    job: Job
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        return " ".join(str(value) for value in self.about.values())


def measure(config: BenchConfig, tell: Callable[[str], None]) -> dict[str, Any]:
    """The record of a run: machine, versions, rates, the model, and all rows."""
    about, rows, found = machine.describe(), [], {}
    rounds, seconds = (2, 0.05) if config.quick else (config.rounds, config.seconds)
    for group in _groups(config):
        outcomes = run_rounds(
            {row.name: row.job for row in group},
            rounds=rounds, threads=config.threads or machine.cores(), seconds=seconds, tell=tell,
        )  # fmt: skip
        rows += group
        found |= summary.variants(outcomes)
    chip = chips.this_chip() if config.chip == "auto" else chips.BY_WORD.get(config.chip)
    rates = {dtype: _rates(chip, found, dtype) for dtype in DTYPES}
    return {
        "benchmark": "mlx_pam bench",
        **about,
        "gpu_cores": chips.cores_here(),
        "settings": {
            **dataclasses.asdict(config), "json": None, "rounds": rounds, "seconds": seconds
        },
        "MODEL": {
            "note": "predictions from the rates below, not measurements: docs/cost_model.md",
            "rates": {name: dataclasses.asdict(of) for name, of in rates.items() if of},
        },
        "rows": [
            {**row.about, **found[row.name], **_prediction(row.about, found[row.name], rates)}
            for row in rows
        ],
    }  # fmt: skip


def _groups(config: BenchConfig) -> Iterator[list[Row]]:
    """Rows that take turns with each other; the processes of one group end before the next."""
    yield list(_probes(config))
    for scale in config.scales:
        if config.part != "decode":
            yield list(_operator(config, scale))
        if config.part != "operator":
            yield list(_decoding(config, scale))


def _probes(config: BenchConfig) -> Iterator[Row]:
    """What the machine does at its best, which the model can take in place of published rates."""
    size, stream = (1024, 1 << 26) if config.quick else (2048, 1 << 29)
    shared = {"backend": config.backend}
    for dtype in DTYPES:
        if dtype == "float32" or config.dtype in (None, dtype):  # models decode in float32
            job = Job("product", {**shared, "dtype": dtype, "size": size})
            yield Row(job, {"part": "product", "dtype": dtype})
    yield Row(Job("stream", {**shared, "copy": True, "size": stream}), {"part": "copy"})
    yield Row(Job("chain", shared), {"part": "chain"})


def _operator(config: BenchConfig, scale: Scale) -> Iterator[Row]:
    tiles = [{"CHUNK": chunk} for chunk in config.chunk] or [{}]
    if config.slab is not None:
        tiles = [{**own, "WIDEST_SLAB": config.slab} for own in tiles]
    forms = [("parallel", {}), ("chunkwise", {}), *(("fused", own) for own in tiles)]
    tokens = SHORTEST if config.quick else config.tokens
    for dtype, time, backward in itertools.product(DTYPES, config.lengths, (False, True)):
        if config.dtype not in (None, dtype):
            continue
        turn = {"seq_len": time, "batch_size": max(1, tokens // time)}
        turn |= {"dtype": dtype, "backward": backward}
        for form, own in forms:
            settings = {"form": form, "scale": scale, "backend": config.backend, **own}
            about = {"part": "operator", "scale": scale, "form": form, **turn, **own}
            yield Row(Job("operator", settings, turn), about)


def _decoding(config: BenchConfig, scale: Scale) -> Iterator[Row]:
    """Each model as it decodes here, and where it does so in kernels, PAM without them too."""
    contexts = CONTEXTS[:2] if config.quick else CONTEXTS
    compiled = {"tokens": 0} if config.quick else {}  # a GPU's step always is
    forms = ("auto", "recurrent") if chips.cores_here() and config.backend == "mlx" else ("auto",)
    ways = [("pam", form) for form in forms] + [("transformer", "auto")]
    for context, (model, form) in itertools.product(contexts, ways):
        settings = {"model": model, "scale": scale, "backend": config.backend, **compiled}
        about = {"part": "decode", "scale": scale, "model": model, "form": form}
        job = Job("decode", settings, {"context": context}, {"MLX_PAM_FORM": form})
        yield Row(job, {**about, "context": context})


def _rates(
    chip: chips.Chip | None, found: Mapping[str, Any], dtype: str
) -> cost_model.Rates | None:
    """Those of the chip, or without one those that the probes found; None if they found none."""
    if chip is not None:
        return cost_model.published(chip)
    product, copy, chain = (
        found.get(name, {}).get("median") for name in (f"product {dtype}", "copy", "chain")
    )
    if not (product and copy and chain):
        return None
    fused = product * cost_model.KERNEL_SHARE / cost_model.PRODUCT_SHARE
    return cost_model.Rates("measured here", product, fused, copy, 1 / chain)


def _prediction(
    about: Mapping[str, Any],
    measured: Mapping[str, Any],
    rates: Mapping[str, cost_model.Rates | None],
) -> dict[str, Any]:
    """Seconds of a call or a token, as measured and as the model has them, and why."""
    if "median" not in measured or about["part"] not in ("operator", "decode"):
        return {}
    dtype, preset = about.get("dtype", "float32"), PRESETS[about.get("model", "pam")]
    model, kernels = preset[about["scale"]], measured.get("kernels")
    if about["part"] == "operator":
        sizes = about["batch_size"], about["seq_len"], model.num_heads, model.head_dim
        shape = cost_model.Shape(*sizes, BYTES[dtype])
        form, amount = about["form"], shape.batch * shape.time
        parts = cost_model.operator(form, shape, measured["chunk"], about["backward"], kernels)
    else:
        parts, amount = cost_model.decode(model, about["context"], kernels or 0), 1
    of = rates[dtype]
    return {
        "seconds": amount / measured["median"],
        "model_seconds": of and cost_model.seconds(parts, of),
        "model_operations": sum(part.operations for part in parts),
        "model_bytes": sum(part.bytes for part in parts),
        "model_kernels": sum(part.kernels for part in parts),
    }
