"""A directory <-> (config, named arrays, training state), written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mlx_pam.config import ModelConfig, model_config
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.parameters import parameter_table

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
TRAINING = "training.json"
COMPLETE = "complete.json"  # written last: byte size and sha256 of each of the others

MOMENTS = ("exp_avg", "exp_avg_sq")

_STEP_FOLDER = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".saving"  # `.step-00000010.saving` becomes `step-00000010`


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds; an exported model has configuration and weights only."""

    path: Path
    config: ModelConfig
    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray] | None = None
    training: dict[str, Any] | None = None


def step_folder(run: Path, step: int) -> Path:
    """The folder of a run's checkpoint after `step` updates."""
    return Path(run) / f"step-{step:08d}"


def size_on_disk(parameters: int) -> int:
    """Bytes of one checkpoint: float32 weights and the two moments of AdamW."""
    return 4 * parameters * (1 + len(MOMENTS))


def save(
    directory: Path | str,
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    optimizer: Mapping[str, np.ndarray] | None = None,
    training: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint folder that appears under its name only when all of it is on the disk.

    Everything goes to a hidden sibling first; each file is synced, the folder renamed, the parent
    synced. Hidden siblings that a crash left behind are removed.
    """
    directory = Path(directory)
    if is_complete(directory):
        raise CheckpointError(f"{directory} already holds a checkpoint: give another folder")
    unfinished = _hidden(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _sweep(directory.parent)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _write_json(unfinished / CONFIG, config.to_dict())
        _write_arrays(unfinished / WEIGHTS, weights)
        if optimizer is not None:
            _write_arrays(unfinished / OPTIMIZER, optimizer)
        if training is not None:
            _write_json(unfinished / TRAINING, training)
        marks = {path.name: _mark(path) for path in sorted(unfinished.iterdir())}
        _write_json(unfinished / COMPLETE, {"files": marks})
        _sync(unfinished)
        _discard(directory)
        unfinished.rename(directory)
        _sync(directory.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {directory}: {error}") from error
    return directory


def prune(run: Path | str, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints of a run folder."""
    for path in complete_checkpoints(run)[:-keep]:
        _discard(path)


def find(path: Path | str) -> Path | None:
    """The newest complete checkpoint of a run folder; incomplete ones are passed over."""
    found = complete_checkpoints(path)
    return found[-1] if found else None


def complete_checkpoints(run: Path | str) -> list[Path]:
    """The complete checkpoints of a run folder, oldest first."""
    steps = {}
    with suppress(OSError):
        for path in Path(run).iterdir():
            match = _STEP_FOLDER.fullmatch(path.name)
            if match and is_complete(path):
                steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]


def is_complete(directory: Path) -> bool:
    """Whether the completeness mark is there and every file it names has its size."""
    try:
        marks = json.loads((directory / COMPLETE).read_bytes())["files"]
        sizes = {name: mark["bytes"] for name, mark in marks.items()}
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def load(path: Path | str, *, optimizer: bool = False) -> Checkpoint:
    """Read a checkpoint folder, or the newest complete one of a run folder.

    Every file is checked before any of it is handed out: against the completeness mark where there
    is one (an exported model may lack it), and the tensors against the configuration. The optimizer
    is read only when asked for. Raises `CheckpointError` that names the file at fault.
    """
    path = Path(path)
    directory = _checkpoint_folder(path)
    _check_marks(directory)
    config = _read_config(directory / CONFIG)
    tensors = {name: ("F32", p.shape) for name, p in parameter_table(config).items()}
    weights = _read_arrays(directory / WEIGHTS, tensors)
    training = _read_json(directory / TRAINING) if (directory / TRAINING).exists() else None
    moments = None
    if optimizer:
        expected = {f"{moment}.{name}": t for moment in MOMENTS for name, t in tensors.items()}
        moments = _read_arrays(directory / OPTIMIZER, expected | {"step": ("I64", ())})
    return Checkpoint(directory, config, weights, moments, training)


# Writing


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    _sync(path)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    shutil.copymode(path.with_name(CONFIG), path)  # save_file hides its files from other users
    _sync(path)


def _mark(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}{_UNFINISHED}")


def _sweep(run: Path) -> None:
    """Remove what a crash left of checkpoints being written or removed: `.step-*.saving` only."""
    for path in run.glob(f".step-*{_UNFINISHED}"):
        if _STEP_FOLDER.fullmatch(path.name[1 : -len(_UNFINISHED)]):
            shutil.rmtree(path, ignore_errors=True)


def _discard(directory: Path) -> None:
    """Remove a step folder; it is hidden first, so that a crash leaves no half of it in sight."""
    if _STEP_FOLDER.fullmatch(directory.name) and directory.is_dir():
        rubbish = directory.with_name(f".step-{0:08d}{_UNFINISHED}")
        shutil.rmtree(rubbish, ignore_errors=True)
        directory.rename(rubbish)
        shutil.rmtree(rubbish, ignore_errors=True)


# Reading


def _checkpoint_folder(path: Path) -> Path:
    if not path.exists():
        raise CheckpointError(f"checkpoint {path} does not exist: give a checkpoint or run folder")
    if not path.is_dir():
        raise CheckpointError(f"checkpoint {path} is a file: give the folder that holds it")
    if any((path / name).exists() for name in (CONFIG, WEIGHTS, COMPLETE)):
        return path
    found = find(path)
    if found is None:
        raise CheckpointError(f"{path} holds no complete checkpoint ({CONFIG} and {WEIGHTS})")
    return found


def _check_marks(directory: Path) -> None:
    if not (directory / COMPLETE).exists():
        return
    marks = _read_json(directory / COMPLETE).get("files")
    if not isinstance(marks, dict):
        raise CheckpointError(f"{directory / COMPLETE} is damaged: it names no files")
    for name, mark in marks.items():
        path = directory / name
        _require_file(path)
        if _mark(path) != mark:
            raise CheckpointError(f"{path} is damaged: it is not the file that was saved")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: restore it, or take another checkpoint")


def _read_json(path: Path) -> dict[str, Any]:
    _require_file(path)
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} is damaged: it must hold a JSON object")
    return record


def _read_config(path: Path) -> ModelConfig:
    record = _read_json(path)
    try:
        return model_config(record)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except TypeError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _read_arrays(
    path: Path, expected: Mapping[str, tuple[str, tuple[int, ...]]]
) -> dict[str, np.ndarray]:
    """The tensors of a file: names, types and shapes must be exactly those expected."""
    _require_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            _require_names(path, set(file.keys()), set(expected))
            for name, (code, shape) in expected.items():
                tensor = file.get_slice(name)
                found = tensor.get_dtype(), tuple(tensor.get_shape())
                if found != (code, tuple(shape)):
                    raise CheckpointError(
                        f"{path}: tensor {name} must be {code} {list(shape)}, "
                        f"got {found[0]} {list(found[1])}"
                    )
            return {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: not a safetensors file ({error})") from error


def _require_names(path: Path, found: set[str], expected: set[str]) -> None:
    for names, complaint in ((expected - found, "lacks"), (found - expected, "has unknown")):
        if names:
            first = ", ".join(sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{path} {complaint} {first}{more}: it is not of this model")
