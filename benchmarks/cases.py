"""The table of what is measured: a case is a question, variants, and ratios that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_pam.benchmarks.rounds import Job

Setting = Mapping[str, Any]
"""What all variants of a row share: scale, batch_size, seq_len, or scale and threads."""
WINDOWS = ("scale", "batch_size", "seq_len")


@dataclass(frozen=True)
class Variant:
    """One thing to measure."""

    workload: str
    fixed: Setting
    """Settings of its own."""
    takes: tuple[str, ...] = ()
    """Settings that it takes from the row."""
    turn: Setting = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    expects: str = ""

    def job(self, setting: Setting) -> Job:
        settings = {**self.fixed, **{name: setting[name] for name in self.takes}}
        return Job(self.workload, settings, self.turn, self.environment, self.expects)


@dataclass(frozen=True)
class Case:
    """A row of results for each setting."""

    question: str
    variants: Mapping[str, Variant]
    pairs: tuple[tuple[str, str], ...]
    """Ratios to report: rate of the first over rate of the second."""
    settings: tuple[Setting, ...]
    minutes: tuple[float, ...]
    """What each setting took on two cores, with `rounds` rounds."""
    rounds: int = 5


def training(model: str, dtype: str, backend: str = "torch", **more: Any) -> Variant:
    fixed = {"model": model, "backend": backend, "dtype": dtype}
    return Variant("train", fixed, WINDOWS, **more)


def decoding(model: str, context: int) -> Variant:
    fixed = {"model": model, "backend": "torch"}
    return Variant("decode", fixed, ("scale",), turn={"context": context})


def loss(function: str, dtype: str, **options: Any) -> Variant:
    return Variant("loss", {"function": function, "dtype": dtype, **options}, WINDOWS)


def product(dtype: str, backend: str = "torch", size: int = 2048, **more: Any) -> Variant:
    return Variant("product", {"backend": backend, "dtype": dtype, "size": size}, **more)


def windows(scale: str, batch_size: int, seq_len: int) -> Setting:
    return {"scale": scale, "batch_size": batch_size, "seq_len": seq_len}


FAMILIES = {"PAM": "pam", "transformer": "transformer"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
CONTEXTS = (0, 2048, 8192, 32768)
REFERENCE_BLAS = {"environment": {"MLX_PAM_BLAS": "none"}, "expects": "reference BLAS"}
OPENBLAS = {"environment": {"MLX_PAM_BLAS": ""}, "expects": "OpenBLAS"}

BOTH_FAMILIES = {
    f"{name} {short}": training(family, dtype)
    for name, family in FAMILIES.items()
    for short, dtype in DTYPES.items()
}
BOTH_FAMILIES_MLX = {
    f"{name} {short}": training(family, dtype, "mlx")
    for name, family in FAMILIES.items()
    for short, dtype in DTYPES.items()
}
AGAINST_TRANSFORMER = (("PAM fp32", "transformer fp32"), ("PAM bf16", "transformer bf16"))
AGAINST_NAIVE = (("PAM fp32", "naive fp32"), ("PAM bf16", "naive fp32"))
PRODUCTS = {f"product {short}": product(dtype) for short, dtype in DTYPES.items()}

LOSSES = (
    ("ours", "summed_loss", {}),
    ("plain", "plain", {}),
    ("chunked", "linear_cross_entropy", {}),  # chunks as PyTorch chooses them
    *(
        (f"chunked by {rows}", "linear_cross_entropy", {"batch_chunk_size": rows})
        for rows in (256, 1024)
    ),
    (
        "chunked by 256, accurate",
        "linear_cross_entropy",
        {"batch_chunk_size": 256, "acc_policy": "accurate"},
    ),
)

CASES: dict[str, Case] = {
    "quick": Case(
        question="does all of it run here, and how fast, roughly?",
        variants={
            "naive fp32": training("naive", "float32"),
            **BOTH_FAMILIES,
            "MLX PAM fp32": training("pam", "float32", "mlx"),
            "MLX transformer fp32": training("transformer", "float32", "mlx"),
        },
        pairs=(
            *AGAINST_NAIVE,
            *AGAINST_TRANSFORMER,
            ("MLX PAM fp32", "MLX transformer fp32"),
        ),
        settings=(windows("5m", 2, 256),),
        minutes=(3,),
        rounds=2,
    ),
    "train": Case(
        question="training: PAM against its published formulation, and against a transformer",
        variants={"naive fp32": training("naive", "float32"), **BOTH_FAMILIES, **PRODUCTS},
        pairs=(*AGAINST_NAIVE, *AGAINST_TRANSFORMER),
        settings=(windows("5m", 8, 512), windows("100m", 4, 512)),
        minutes=(5, 10),
    ),
    "train-mlx": Case(
        question="the same on MLX, both families",
        variants=BOTH_FAMILIES_MLX,
        pairs=AGAINST_TRANSFORMER,
        settings=(windows("5m", 8, 512),),
        minutes=(6,),
        rounds=3,
    ),
    "length": Case(
        question="training on longer windows at equal tokens a step: speed and memory",
        variants={name: v for name, v in BOTH_FAMILIES.items() if name.endswith("bf16")},
        pairs=AGAINST_TRANSFORMER[1:],
        settings=tuple(
            windows(scale, 8192 // seq_len, seq_len)
            for scale in ("5m", "100m")
            for seq_len in (512, 2048, 4096, 8192)
        ),
        minutes=(2, 2, 2, 2, 4, 4, 5, 6),
        rounds=3,
    ),
    "decode": Case(
        question="a token behind contexts of any length: constant state against a growing cache",
        variants={
            **{
                f"{name} @{context}": decoding(family, context)
                for context in CONTEXTS
                for name, family in FAMILIES.items()
            },
            "copy": Variant("stream", {"copy": True}),
            "read": Variant("stream", {"copy": False}),
        },
        pairs=(
            *((f"PAM @{context}", f"transformer @{context}") for context in CONTEXTS),
            *((f"PAM @{context}", "PAM @0") for context in CONTEXTS[1:]),
        ),
        settings=tuple(
            {"scale": scale, "threads": threads} for scale in ("100m", "5m") for threads in (1, 2)
        ),
        minutes=(3, 3, 2, 2),
    ),
    "blas": Case(
        question="MLX on a Linux CPU: its own reference BLAS against NumPy's OpenBLAS",
        variants={
            "reference": training("pam", "float32", "mlx", **REFERENCE_BLAS),
            "OpenBLAS": training("pam", "float32", "mlx", **OPENBLAS),
            "product, reference": product("float32", "mlx", 1024, **REFERENCE_BLAS),
            "product, OpenBLAS": product("float32", "mlx", 1024, **OPENBLAS),
        },
        pairs=(("OpenBLAS", "reference"), ("product, OpenBLAS", "product, reference")),
        settings=(windows("5m", 8, 512), windows("10m", 8, 512)),
        minutes=(5, 10),
        rounds=3,
    ),
    "loss": Case(
        question="the loss behind the head: ours, PyTorch's chunked one, and the plain one",
        variants={
            f"{name} {short}": loss(function, dtype, **options)
            for short, dtype in DTYPES.items()
            for name, function, options in LOSSES
        },
        pairs=tuple(
            (f"ours {short}", f"{name} {short}") for short in DTYPES for name, _, _ in LOSSES[1:]
        ),
        settings=(windows("5m", 8, 512), windows("100m", 4, 512)),
        minutes=(6, 4),
        rounds=3,
    ),
}
