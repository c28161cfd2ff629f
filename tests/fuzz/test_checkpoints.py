"""Checkpoints that are damaged, lie or are of something else are refused, or load as a whole."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fuzz import mutations
from fuzz.attack import Random, attack, command, inputs, refused, write
from small_run import corpus as corpus
from small_run import run

from mlx_pam import checkpoint, durable
from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig
from mlx_pam.generate import generate, stream
from mlx_pam.language_model import LanguageModel, load
from mlx_pam.parameters import initial_weights, parameter_table
from mlx_pam.text_state import load_state

SIZES = {"dim": 4, "num_layers": 2, "num_heads": 2, "head_dim": 2}
SMALL = (
    PAMConfig(**SIZES, vocab_size=11, protect="channel", conv_width=2, attention_every=2),
    SAMConfig(**SIZES, vocab_size=11, reset_token=3),
    TransformerConfig(**SIZES, vocab_size=11),
)
SPEAKING = PAMConfig(dim=2, num_layers=1, num_heads=1, head_dim=2)


def moments(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {f"{moment}.{name}": w for moment in checkpoint.MOMENTS for name, w in weights.items()}
    return found | {"step": np.array(3)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """A checkpoint of each family, small enough to be read a thousand times a second."""
    parent = tmp_path_factory.mktemp("checkpoints")
    found = []
    for config in SMALL:
        weights = initial_weights(config, seed=0)
        training = {"step": 3, "tokenizer": "gpt2", "data": {}, "config": {}}
        folder = parent / config.model_type
        found.append(checkpoint.save(folder, config, weights, moments(weights), training))
    return found


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory) -> Path:
    """A run of a model that has GPT-2's vocabulary and little else."""
    out = tmp_path_factory.mktemp("finished")
    run(corpus, out, SPEAKING, steps=2, save_every=1)
    return out


@pytest.fixture(scope="module")
def model(finished) -> LanguageModel:
    return load(finished, "mlx")


def one_checkpoint(folders: list[Path], scratch: Path, random: Random) -> None:
    """Damage one file; what loads all the same has every tensor, of its shape and finite."""
    whole = random.choice(folders)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(whole, scratch)
    names = (checkpoint.CONFIG, checkpoint.TRAINING, checkpoint.COMPLETE)
    tensors = (checkpoint.WEIGHTS, checkpoint.OPTIMIZER)
    name = random.choice((checkpoint.CONFIG, *names, *tensors))
    raw = (scratch / name).read_bytes()
    damaged = (
        mutations.of_tensors(random, raw)
        if name in tensors
        else mutations.of_json(random, json.loads(raw))
    )
    write(scratch / name, damaged)
    if name != checkpoint.COMPLETE and random.random() < 0.8:  # else the marks alone tell
        (scratch / checkpoint.COMPLETE).unlink()
    checkpoint.find(scratch.parent)
    checkpoint.is_complete(scratch)

    def read() -> None:
        found = checkpoint.load(scratch, optimizer=True)
        shapes = {name: p.shape for name, p in parameter_table(found.config).items()}
        assert {name: w.shape for name, w in found.weights.items()} == shapes
        assert all(np.isfinite(array).all() for array in found.weights.values())
        assert all(np.isfinite(array).all() for array in found.optimizer.values())

    refused(read)


@inputs(700, 60_000)
def test_damaged_checkpoints(folders, tmp_path, count):
    attack("checkpoints", count, partial(one_checkpoint, folders, tmp_path / "model"))


def one_resumed(corpus: Path, finished: Path, scratch: Path, random: Random) -> None:
    """A record of the run that is another version's, say: its marks are right."""
    shutil.rmtree(scratch, ignore_errors=True)
    newest = checkpoint.find(finished)
    folder = scratch / newest.name
    shutil.copytree(newest, folder)
    name = random.choice((checkpoint.TRAINING, checkpoint.TRAINING, checkpoint.CONFIG))
    write(folder / name, mutations.of_json(random, json.loads((folder / name).read_bytes())))
    files = [path for path in sorted(folder.iterdir()) if path.name != checkpoint.COMPLETE]
    marks = {path.name: durable.mark(path) for path in files}
    durable.write_json(folder / checkpoint.COMPLETE, {"files": marks})
    if random.random() < 0.5:
        write(scratch / checkpoint.BEST, mutations.of_json(random, {"step": 2, "loss": 1.0}))
    with contextlib.redirect_stdout(io.StringIO()):  # thousands of lines
        refused(lambda: run(corpus, scratch, SPEAKING, steps=2, resume=True))


@inputs(25, 500)
def test_damaged_records_of_runs_that_are_resumed(corpus, finished, tmp_path, count):
    attack("records", count, partial(one_resumed, corpus, finished, tmp_path / "run"))


def one_state(model: LanguageModel, raw: bytes, path: Path, random: Random) -> None:
    """A saved text that is damaged is refused, or goes on."""
    write(path, mutations.of_tensors(random, raw))

    def go_on() -> None:
        state = load_state(model, path)
        generate(model, "", state=state, max_tokens=1, repetition_penalty=1.2)
        state.save(path)

    refused(go_on)


@inputs(150, 5_000)
def test_damaged_states(model, tmp_path, count):
    path = tmp_path / "state"
    pieces = stream(model, "The state", max_tokens=3, seed=0)
    list(pieces)
    pieces.state().save(path)
    attack("states", count, partial(one_state, model, path.read_bytes(), path))


def one_spoken(finished: Path, scratch: Path, random: Random) -> None:
    """The command itself, on a checkpoint with one damaged file."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(checkpoint.find(finished), scratch)
    (scratch / checkpoint.COMPLETE).unlink()
    name = random.choice((checkpoint.CONFIG, checkpoint.TRAINING, checkpoint.WEIGHTS))
    raw = (scratch / name).read_bytes()
    if name == checkpoint.WEIGHTS:
        write(scratch / name, mutations.of_tensors(random, raw))
    else:
        write(scratch / name, mutations.of_json(random, json.loads(raw)))
    command("generate", "--checkpoint", str(scratch), "--prompt", "a", "--max-tokens", "1")


@inputs(25, 500)
def test_damaged_checkpoints_at_the_command_line(finished, tmp_path, count):
    attack("spoken", count, partial(one_spoken, finished, tmp_path / "model"))
