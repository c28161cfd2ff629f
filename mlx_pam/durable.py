"""JSON and safetensors files: synced when written, and refused by name unless they are whole."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mlx_pam.errors import CheckpointError

Expected = Mapping[str, tuple[str, tuple[int, ...]]]
"""name -> (type as safetensors names it, shape)."""

HALF = ("F16", "BF16")
"""Types that float32 holds without rounding."""

T = TypeVar("T")


# Writing: every failure is an `OSError`


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, synced."""
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    sync(path)


def write_bytes(path: Path, raw: bytes) -> None:
    """Write bytes, synced."""
    path.write_bytes(raw)
    sync(path)


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Write named arrays, synced."""
    path.touch()
    mode = path.stat().st_mode  # save_file hides its files from other users
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(ordered, path, metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
    sync(path)


def replace(path: Path, write: Callable[[Path], None]) -> None:
    """Replace the file `path`, or create it, once `write` has written all of it to the disk.

    `write` is given the path of a temporary file in the same folder. A symbolic link stays: the
    file that it points to is the one replaced. Anything but a regular file is refused.
    """
    if reason := obstacle(path):
        raise OSError(errno.EINVAL, reason, str(path))
    target = _target(path)
    unfinished = target.with_name(f".{target.name}.saving")
    try:
        write(unfinished)
        if target.exists():
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        sync(unfinished)
        unfinished.replace(target)
        sync(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def obstacle(path: Path) -> str | None:
    """Why no file can be written at `path`, or None; asked before long work, too.

    A file that exists must be a regular one: to replace a device, a pipe or a socket by a file
    would take it away from whatever uses it. So would replacing a file that this process prints to.
    """
    try:
        target = _target(path)
        mode = path.stat().st_mode if path.exists() else None
        is_stream = str(path.absolute()).startswith(_STREAMS) or _is_printed_to(path)
        is_folder = target.parent.is_dir()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        return getattr(error, "strerror", None) or "its symbolic links form a loop"
    if mode is not None and not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "special file")
        return f"it is a {kind}, not a regular file"
    if is_stream:
        return "it is a stream of this process, not a file of its own"
    if not is_folder:
        return f"{target.parent} is not an existing folder"
    if not os.access(target.parent, os.W_OK):
        return f"{target.parent} is not writable"
    return None


def _is_printed_to(path: Path) -> bool:
    """Whether stdout or stderr is redirected to the file at `path`."""
    for descriptor in (1, 2):
        with suppress(OSError):  # closed, or no such file
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return True
    return False


_STREAMS = ("/dev/fd/", "/dev/std", "/proc/")
_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def _target(path: Path) -> Path:
    """The file that a path names once its symbolic links are followed."""
    return path.resolve() if path.is_symlink() else path


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark(path: Path) -> dict[str, Any]:
    """Byte size and sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


# Reading: every failure is a `CheckpointError` that names the file


def require_file(path: Path) -> None:
    try:
        found = path.is_file()
    except OSError as error:  # a name that is too long, a folder that is closed
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if not found:
        raise CheckpointError(f"{path} is missing: restore it, or take another checkpoint")


def require_mark(path: Path, expected: object) -> None:
    """The file must be, to the byte, the one that bore this mark."""
    require_file(path)
    try:
        found = mark(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if found != expected:
        raise CheckpointError(f"{path} is damaged: it is not the file that was saved; take another")


def read_bytes(path: Path) -> bytes:
    require_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    raw = read_bytes(path)
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} is damaged: it must hold a JSON object")
    return record


def read_arrays(path: Path, expected: Expected) -> dict[str, np.ndarray]:
    """The tensors of a file: names, types and shapes exactly as expected, every element finite.

    Where float32 is expected, float16 and bfloat16 are read too, and widened: no bit is lost.
    """
    require_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            _require_names(path, set(file.keys()), set(expected))
            slices = {name: file.get_slice(name) for name in expected}
            found = {n: (s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}
            _require_fit(path, found, expected)
            arrays = {
                name: _bfloat16(path, name) if code == "BF16" else file.get_tensor(name)
                for name, (code, _) in found.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: not a safetensors file ({error})") from error
    for name, (code, _) in expected.items():
        if code == "F32":
            arrays[name] = arrays[name].astype(np.float32, copy=False)
    require_finite(path, arrays)
    return arrays


def count_arrays(path: Path) -> int:
    """How many tensors a file holds, of whatever name and shape."""
    return len(_header(path, lambda file: file.keys()))


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that a file of tensors bears, by name."""
    return _header(path, lambda file: file.metadata() or {})


def require_finite(where: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise a `CheckpointError` that counts what is NaN or infinite in the first such array."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            nan = int(np.isnan(array).sum())
            infinite = int(np.isinf(array).sum())
            raise CheckpointError(
                f"{where}: every number must be finite, got {nan:,} NaN and {infinite:,} infinite "
                f"of {array.size:,} in {name}: training diverged before it was saved; take an "
                "earlier checkpoint"
            )


def _header(path: Path, read: Callable[[safe_open], T]) -> T:
    require_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return read(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: not a safetensors file ({error})") from error


def _require_fit(path: Path, found: Expected, expected: Expected) -> None:
    misfits, shapes = [], True
    for name, (code, shape) in expected.items():
        is_type = found[name][0] in ((code, *HALF) if code == "F32" else (code,))
        is_shape = found[name][1] == tuple(shape)
        if not (is_type and is_shape):
            misfits.append(
                f"{name} must be {code} {list(shape)}, got {found[name][0]} {list(found[name][1])}"
            )
        shapes &= is_shape
    if misfits:
        more = f"; and {len(misfits) - 3:,} more" if len(misfits) > 3 else ""
        remedy = "convert them to the type and save again" if shapes else "it is not of this model"
        raise CheckpointError(
            f"{path}: {len(misfits):,} of {len(expected):,} tensors do not fit: "
            f"{'; '.join(misfits[:3])}{more}: {remedy}"
        )


def _bfloat16(path: Path, name: str) -> np.ndarray:
    """A bfloat16 tensor as float32; NumPy has no bfloat16, whose bits are float32's upper half."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + length + begin)
        bits = np.frombuffer(file.read(end - begin), "<u2")
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])


def _require_names(path: Path, found: set[str], expected: set[str]) -> None:
    for names, complaint in ((expected - found, "lacks"), (found - expected, "has unknown")):
        if names:
            first = ", ".join(sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{path} {complaint} {first}{more}: it is not of this model")
