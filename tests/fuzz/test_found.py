"""What fuzzing has found, each by itself: once an error of Python's, now one in words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from fuzz.attack import command
from safetensors.numpy import load_file, save_file

from mlx_pam import checkpoint
from mlx_pam.backend import get_backend
from mlx_pam.cli.arguments import parse
from mlx_pam.cli.generate import GenerateArguments
from mlx_pam.config import PAMConfig, model_config
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.durable import read_metadata
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.generate import stream
from mlx_pam.language_model import LanguageModel
from mlx_pam.parameters import initial_weights
from mlx_pam.text_state import load_state

TINY = PAMConfig(dim=2, num_layers=1, num_heads=1, head_dim=2, vocab_size=11)


@pytest.fixture
def folder(tmp_path) -> Path:
    return checkpoint.save(tmp_path / "model", TINY, initial_weights(TINY, seed=0))


def test_layers_by_the_million_are_refused_before_any_is_made(folder):
    (folder / checkpoint.COMPLETE).unlink()
    record = TINY.to_dict() | {"num_layers": 10**9}
    (folder / checkpoint.CONFIG).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="too few for the 1,000,000,000 layers"):
        checkpoint.load(folder)


def test_a_number_beyond_a_float_is_no_number():
    with pytest.raises(ConfigError, match="alpha_pam_init must be a number"):
        model_config(TINY.to_dict() | {"alpha_pam_init": 10**400})


@pytest.mark.parametrize("name", ["dim", "num_layers", "attention_window"])
def test_a_size_beyond_all_machines_is_refused(name):
    with pytest.raises(ConfigError, match=rf"{name} must be below 2\^31, got 1000"):
        model_config(TINY.to_dict() | {name: 10**400})


def test_steps_without_end_and_windows_of_no_size_are_refused(capsys):
    for option in ("--steps", "--batch-size", "--warmup-steps"):
        assert command("train", option, "1" + "0" * 400, "--dry-run") == 2


def test_a_best_checkpoint_beyond_numbers_is_none(tmp_path):
    (tmp_path / checkpoint.BEST).write_text('{"step": 1e999, "loss": 1}')
    assert checkpoint.best(tmp_path) is None


def test_help_is_help_whatever_stands_beside_it():
    assert command("train", "--warmup-steps", "--recipe=x", "--help") == 0


def test_a_folder_that_the_system_refuses_is_an_error_in_words():
    assert command("runs", "a" * 5000) == 2


def test_a_mark_of_deep_json_is_no_mark(folder):
    (folder / checkpoint.COMPLETE).write_text("[" * 100_000)
    assert not checkpoint.is_complete(folder)
    with pytest.raises(CheckpointError, match="not JSON"):
        checkpoint.load(folder)


def test_names_that_are_too_long_are_refused(folder):
    record = {"files": {"a" * 5000: {"bytes": 1}}}
    (folder / checkpoint.COMPLETE).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="File name too long"):
        checkpoint.load(folder)
    with pytest.raises(CheckpointError, match="File name too long"):
        checkpoint.load("a" * 5000)


def test_a_run_whose_name_is_no_text_is_listed(tmp_path):
    run = tmp_path / os.fsdecode(b"\xff")
    run.mkdir()
    (run / "log.jsonl").write_text('{"event": "start", "config": {"model": "\\ud800"}}\n')
    assert command("runs", str(tmp_path)) == 0
    assert command("runs", str(tmp_path), "--json") == 0


@pytest.mark.parametrize(
    ("name", "place", "value", "complaint"),
    [
        ("recent", 0, 60_000, "tokens that the vocabulary lacks"),
        ("generator", 4, 2**63, "its random generator is none of NumPy's"),
        ("generator", 5, 2**32, "its random generator is none of NumPy's"),
    ],
)
def test_a_state_of_impossible_numbers_is_refused(tmp_path, name, place, value, complaint):
    config = PAMConfig(dim=2, num_layers=1, num_heads=1, head_dim=2)
    backend = get_backend("mlx")
    model = LanguageModel(config, gpt2(), backend, backend.build(config, seed=0))
    pieces = stream(model, "a", max_tokens=1)
    list(pieces)
    path = pieces.state().save(tmp_path / "state")
    texts, arrays = read_metadata(path), {n: np.array(a) for n, a in load_file(path).items()}
    arrays[name][place] = value
    save_file(arrays, path, texts)
    with pytest.raises(CheckpointError, match=complaint):
        load_state(model, path)


def test_a_name_that_is_too_long_is_said_before_anything_is_written():
    with pytest.raises(ConfigError, match=r"--save-state must be .*, got é+: File name too long"):
        parse(GenerateArguments, ["--save-state", "é" * 300], prog="x", description="")
