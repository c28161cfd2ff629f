"""The process of one variant: reads a request a line from stdin, answers each by a line of JSON.

It is started by `rounds.Worker`, its workload as JSON in its one argument. A request is
`{"turn": {...}}`, or `{"turn": {...}, "seconds": 2}` to warm up for turns of that length.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from mlx_pam.benchmarks import memory


def main() -> None:
    answer, steps = _answers(), {}
    name, settings = json.loads(sys.argv[1])
    try:
        from mlx_pam.benchmarks.workloads import WORKLOADS  # may lack a library, and then says so

        workload = WORKLOADS[name](**settings)
        answer({"description": workload.description, "unit": workload.unit})
    except Exception as error:
        answer(_failure(error))
        return
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(_turn(workload, request["turn"], request.get("seconds"), steps))
        except Exception as error:
            answer(_failure(error))


def _failure(error: Exception) -> dict[str, Any]:
    traceback.print_exc()
    return {"error": str(error) or type(error).__name__}


def _turn(
    workload: Any, turn: dict[str, Any], seconds: float | None, steps: dict[str, int]
) -> dict[str, Any]:
    """One turn; to warm up, a step for compilers and caches and one to see how many fill a turn."""
    key = json.dumps(turn)
    facts = workload.prepare(**turn)
    memory.forget_peak()
    if seconds is not None:
        _timed(workload, 1)
        _, elapsed = _timed(workload, 1)
        steps[key] = max(1, math.ceil(seconds / elapsed))
        workload.rest()
        return {"steps": steps[key]}
    amount, elapsed = _timed(workload, steps[key])
    result = {
        "rate": amount / elapsed,
        "facts": workload.facts | facts | {"steps_per_turn": steps[key]},
        "peak_bytes": workload.peak_bytes(),
    }
    workload.rest()
    return result


def _timed(workload: Any, steps: int) -> tuple[float, float]:
    """How much so many steps did, and in how many seconds."""
    workload.synchronise()
    start = time.perf_counter()
    amount = sum(workload.step() for _ in range(steps))
    workload.synchronise()
    return amount, time.perf_counter() - start


def _answers() -> Callable[[dict[str, Any]], None]:
    """Writes answers to what is stdout now; whatever else is printed goes to stderr."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=channel, flush=True)

    return answer


if __name__ == "__main__":
    main()
