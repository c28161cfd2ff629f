"""Logs of runs that never were, as the training writes them; imported by tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mlx_pam.training.metrics import LOG, to_json

TIME = 1.8e9
CONFIG = {"model": "sam", "scale": "10m", "data": "a-text"}


def start(step: int = 0, steps: int = 100, **fields: Any) -> dict[str, Any]:
    plan = {"parameters": 9_876_543, "steps": steps}
    return {"event": "start", "step": step, "config": CONFIG, "plan": plan, **fields}


def step(number: int, loss: float = 3.0, **fields: Any) -> dict[str, Any]:
    return {
        "event": "step", "step": number, "tokens": 64 * number, "loss": loss,
        "perplexity": math.exp(loss), "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": 100.0,
        "peak_memory": 10**9, "elapsed": 2.0 * number,
    } | fields  # fmt: skip


def evaluation(number: int, loss: float = 3.0) -> dict[str, Any]:
    return {
        "event": "evaluation", "step": number, "tokens": 64 * number, "loss": loss,
        "perplexity": math.exp(loss),
    }  # fmt: skip


def checkpoint(number: int) -> dict[str, Any]:
    return {"event": "checkpoint", "step": number, "path": "somewhere"}


def end(number: int, status: str = "finished") -> dict[str, Any]:
    return {"event": "end", "step": number, "status": status}


def write_log(run: Path, *records: dict[str, Any], rest: bytes = b"") -> Path:
    """A run folder whose log holds these records, two seconds apart, and then `rest`."""
    run.mkdir(parents=True, exist_ok=True)
    lines = [to_json(record | {"time": TIME + 2 * i}) for i, record in enumerate(records)]
    (run / LOG).write_bytes("".join(line + "\n" for line in lines).encode() + rest)
    return run


def steps(first: int, last: int, loss: float = 3.0) -> list[dict[str, Any]]:
    return [step(number, loss) for number in range(first, last + 1)]
