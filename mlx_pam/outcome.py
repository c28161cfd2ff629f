"""The outcome of work that one process does for all of a run, as JSON: plain data, no objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_pam import errors
from mlx_pam.errors import MlxPamError

_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, MlxPamError)
}


def message(work: Callable[[], Any]) -> bytes:
    """Call work(); its result, which must be a path or what JSON can hold, or its `MlxPamError`."""
    try:
        result = work()
    except MlxPamError as error:
        kind = next(kind for kind in type(error).__mro__ if kind in _ERRORS.values())
        record = {"error": kind.__name__, "text": str(error)}
    else:
        record = {"path": str(result)} if isinstance(result, Path) else {"result": result}
    return json.dumps(record).encode()


def receive(message: bytes) -> Any:
    """The result in a message; raises the error if it holds one."""
    record = json.loads(message)
    if "error" in record:
        raise _ERRORS[record["error"]](record["text"])
    return Path(record["path"]) if "path" in record else record["result"]
