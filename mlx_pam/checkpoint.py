"""A directory <-> (config, named arrays, training state), written whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlx_pam import durable
from mlx_pam.config import TOKENIZER, TOKENIZER_CONFIG, ModelConfig, model_config
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.parameters import parameter_table
from mlx_pam.paths import expand_home

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
TRAINING = "training.json"
COMPLETE = "complete.json"  # written last: byte size and sha256 of each of the others
BEST = "best.json"  # beside the checkpoints of a run: which of them is the best

MOMENTS = ("exp_avg", "exp_avg_sq")

_STEP_FOLDER = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".saving"  # `.step-00000010.saving` becomes `step-00000010`
_ATTEMPTS = 10  # to read a run's newest checkpoint before the run removes it


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds; an exported model has configuration and weights only."""

    path: Path
    config: ModelConfig
    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray] | None = None
    training: dict[str, Any] | None = None
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    """Name and contents of the files of a tokenizer that is not built in."""


@dataclass(frozen=True)
class Validation:
    """The mean loss of the validation split after `step` updates."""

    step: int
    loss: float


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
    tokenizer: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a checkpoint folder that appears under its name only when all of it is on the disk.

    Everything goes to a hidden sibling first; each file is synced, the folder renamed, the parent
    synced. What a crash left behind is removed, what a failure leaves too. Numbers that are not
    finite are not saved.
    """
    directory = Path(directory)
    if is_complete(directory):
        raise CheckpointError(f"{directory} already holds a checkpoint: give another folder")
    durable.require_finite(directory / WEIGHTS, weights)
    durable.require_finite(directory / OPTIMIZER, optimizer or {})
    unfinished = directory.with_name(f".{directory.name}{_UNFINISHED}")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        sweep(directory.parent)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        durable.write_json(unfinished / CONFIG, config.to_dict())
        durable.write_arrays(unfinished / WEIGHTS, weights)
        if optimizer is not None:
            durable.write_arrays(unfinished / OPTIMIZER, optimizer)
        if training is not None:
            durable.write_json(unfinished / TRAINING, training)
        for name, raw in (tokenizer or {}).items():
            durable.write_bytes(unfinished / name, raw)
        marks = {path.name: durable.mark(path) for path in sorted(unfinished.iterdir())}
        durable.write_json(unfinished / COMPLETE, {"files": marks})
        durable.sync(unfinished)
        _discard(directory)
        unfinished.rename(directory)
        durable.sync(directory.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)  # a full disk needs the room
        raise CheckpointError(f"cannot write checkpoint {directory}: {error}") from error
    return directory


# The checkpoints of a run


def complete_checkpoints(run: Path | str) -> list[Path]:
    """The complete checkpoints of a run folder, oldest first."""
    return [path for path in step_folders(run) if is_complete(path)]


def step_folders(run: Path | str) -> list[Path]:
    """The folders of a run's checkpoints, complete or not, oldest first."""
    steps = {}
    with suppress(OSError):
        for path in Path(run).iterdir():
            if match := _STEP_FOLDER.fullmatch(path.name):
                steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]


def is_complete(directory: Path) -> bool:
    """Whether the completeness mark is there and every file it names has its size."""
    try:
        marks = json.loads((directory / COMPLETE).read_bytes())["files"]
        sizes = {name: mark["bytes"] for name, mark in marks.items()}
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def find(path: Path | str) -> Path | None:
    """The newest complete checkpoint of a run folder; incomplete ones are passed over.

    A run at work may save the next one and remove this one while it is looked at: if the newest is
    not there any more, the folder is listed anew.
    """
    folders, newest = None, None
    while (listed := step_folders(path)) != folders:
        folders = listed
        newest = next((folder for folder in reversed(folders) if is_complete(folder)), None)
        if folders and newest == folders[-1]:
            break
    return newest


def best(run: Path | str) -> Validation | None:
    """Which complete checkpoint of a run has the lowest validation loss, as the run recorded it."""
    found = _recorded_best(run)
    while found and not is_complete(step_folder(Path(run), found.step)):
        tried, found = found, _recorded_best(run)
        if found == tried:  # not merely replaced by a better one meanwhile
            return None
    return found


def record_best(run: Path | str, validation: Validation) -> None:
    """Have the run's checkpoint after that step be its best."""
    path = Path(run) / BEST
    try:
        durable.replace(path, lambda file: durable.write_json(file, asdict(validation)))
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error


def _recorded_best(run: Path | str) -> Validation | None:
    try:
        record = durable.read_json(Path(run) / BEST)
        return Validation(int(record["step"]), float(record["loss"]))
    except (CheckpointError, KeyError, TypeError, ValueError, OverflowError):
        return None


def prune(run: Path | str, keep: int, superseded: Path | None = None) -> None:
    """Remove all complete checkpoints of a run folder but the newest `keep` and the best.

    `superseded` is one that a newer checkpoint of the same weights replaces: it is not among
    those `keep`, and is removed unless it is the best.
    """
    kept = best(run)
    spared = kept and step_folder(Path(run), kept.step)
    try:
        found = [path for path in complete_checkpoints(run) if path != superseded]
        for path in [*found[:-keep], *([superseded] if superseded else [])]:
            if path != spared:
                _discard(path)
    except OSError as error:
        raise CheckpointError(f"cannot remove old checkpoints in {run}: {error}") from error


def sweep(run: Path) -> None:
    """Remove what a crash left of files being written or removed: `.step-*.saving` and the like."""
    with suppress(OSError):
        (run / f".{BEST}{_UNFINISHED}").unlink(missing_ok=True)
    for path in run.glob(f".step-*{_UNFINISHED}"):
        if _STEP_FOLDER.fullmatch(path.name[1 : -len(_UNFINISHED)]):
            _remove(path)


def _discard(directory: Path) -> None:
    """Remove a step folder; it is hidden first, so that a crash leaves no half of it in sight."""
    if _STEP_FOLDER.fullmatch(directory.name) and directory.is_dir():
        rubbish = directory.with_name(f".step-{0:08d}{_UNFINISHED}")
        _remove(rubbish)
        directory.rename(rubbish)
        _remove(rubbish)


def _remove(directory: Path) -> None:
    """Remove a folder, or the link in its place: what a link points to is not the run's own."""
    if directory.is_symlink():
        directory.unlink(missing_ok=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)


# Reading


def load(path: Path | str, *, optimizer: bool = False) -> Checkpoint:
    """Read a checkpoint folder, or the newest complete one of RUN, or the best as RUN/best.

    Every file is checked before any of it is handed out: against the completeness mark where there
    is one (an exported model may lack it), and the tensors against the configuration. The optimizer
    is read only when asked for. A run may save and remove checkpoints meanwhile. Raises
    `CheckpointError` that names the file at fault.
    """
    path = expand_home(path)
    try:
        directory = _checkpoint_folder(path)
        for _ in range(_ATTEMPTS):
            try:
                return _load(directory, optimizer)
            except CheckpointError:
                tried, directory = directory, _checkpoint_folder(path)
                if directory == tried:
                    raise
        return _load(directory, optimizer)
    except OSError as error:  # a name that is too long, a folder that is closed
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror}") from error


def _load(directory: Path, optimizer: bool) -> Checkpoint:
    _check_marks(directory)
    config = _read_config(directory / CONFIG)
    held = durable.count_arrays(directory / WEIGHTS)
    if config.num_layers > held:  # before a table is made of layers by the million
        raise CheckpointError(
            f"{directory / WEIGHTS} is not of this model: its {held:,} tensors are too few for the "
            f"{config.num_layers:,} layers of {CONFIG}"
        )
    tensors = {name: ("F32", p.shape) for name, p in parameter_table(config).items()}
    weights = durable.read_arrays(directory / WEIGHTS, tensors)
    training = None
    if (directory / TRAINING).exists():
        training = durable.read_json(directory / TRAINING)
    moments = None
    if optimizer:
        expected = {f"{moment}.{name}": t for moment in MOMENTS for name, t in tensors.items()}
        moments = durable.read_arrays(directory / OPTIMIZER, expected | {"step": ("I64", ())})
    paths = [directory / name for name in (TOKENIZER, TOKENIZER_CONFIG)]
    tokenizer = {path.name: durable.read_bytes(path) for path in paths if path.is_file()}
    return Checkpoint(directory, config, weights, moments, training, tokenizer)


def _checkpoint_folder(path: Path) -> Path:
    if path.name == "best" and not path.exists():
        found = best(path.parent)
        if found is None:
            raise CheckpointError(
                f"{path.parent} has no best checkpoint: a run that evaluates and saves records one"
            )
        return step_folder(path.parent, found.step)
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
    marks = durable.read_json(directory / COMPLETE).get("files")
    if not isinstance(marks, dict):
        raise CheckpointError(f"{directory / COMPLETE} is damaged: it names no files")
    for name, mark in marks.items():
        durable.require_mark(directory / name, mark)


def _read_config(path: Path) -> ModelConfig:
    record = durable.read_json(path)
    try:
        return model_config(record)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except TypeError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
