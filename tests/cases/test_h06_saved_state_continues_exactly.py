"""H06: a text whose state was saved goes on in a new process as if it had never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from new_process import mlx_pam
from tiny_models import TINY, TINY_TRANSFORMER, random_checkpoint

from mlx_pam import checkpoint, generate, load
from mlx_pam.config import PAMConfig
from mlx_pam.parameters import initial_weights

WORDS = np.random.default_rng(3).choice(["river", "stone", "over", "old", "falls"], 4000)
GREEDY = ["--temperature", "0", "--json"]


def prefix(tokens: int) -> str:
    """A text of so many tokens."""
    return "river" + "".join(f" {word}" for word in WORDS[: tokens - 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("h06") / "model")


def run(folder: Path, *words: str | Path) -> dict:
    done = mlx_pam("generate", "--checkpoint", folder, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("config", [TINY, TINY_TRANSFORMER], ids=lambda c: c.model_type)
def test_30_tokens_after_a_saved_prefix_of_300_are_those_of_one_run(backend, tmp_path, config):
    folder = random_checkpoint(tmp_path / "model", config)
    words = ["--backend", backend.name, *GREEDY]
    whole = run(folder, "--prompt", prefix(300), "--max-tokens", "30", *words)
    assert whole["prompt_tokens"] == 300
    state = tmp_path / "text.state"
    run(folder, "--prompt", prefix(300), "--max-tokens", "0", "--save-state", state, *words)
    went_on = run(folder, "--state", state, "--max-tokens", "30", *words)
    assert went_on["tokens"] == whole["tokens"]
    assert went_on["text"] == whole["text"]


def test_a_file_is_of_one_size_whatever_the_length_of_the_text(folder, tmp_path):
    sizes = {}
    for tokens in (1, 30, 3000):
        state = tmp_path / str(tokens)
        words = ["--prompt", prefix(tokens), "--max-tokens", "0", "--save-state", state]
        assert run(folder, *words, "--json")["prompt_tokens"] == tokens
        sizes[tokens] = state.stat().st_size
    assert len(set(sizes.values())) == 1, sizes


def test_a_state_of_another_model_is_a_clean_error(folder, tmp_path):
    state = tmp_path / "text.state"
    run(folder, "--prompt", "Once", "--max-tokens", "1", "--save-state", state, "--json")
    others = {
        "weights": checkpoint.save(tmp_path / "weights", TINY, initial_weights(TINY, seed=1)),
        "sizes": random_checkpoint(
            tmp_path / "sizes", PAMConfig(dim=16, num_layers=1, num_heads=2, head_dim=8)
        ),
    }
    for other in others.values():
        done = mlx_pam("generate", "--checkpoint", other, "--state", state)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr == (
            f"error: {state} is a state of another model: give the checkpoint that it was made "
            "with\n"
        )


def test_from_python_too(folder, tmp_path):
    from mlx_pam import load_state, stream

    model = load(folder)
    whole = generate(model, prefix(300), temperature=0, max_tokens=30)
    pieces = stream(model, prefix(300), temperature=0, max_tokens=0)
    assert list(pieces) == []
    path = pieces.state().save(tmp_path / "text.state")
    state = load_state(load(folder), path)
    assert state.tokens == 300
    went_on = generate(model, "", state=state, temperature=0, max_tokens=30)
    assert went_on.tokens == whole.tokens
