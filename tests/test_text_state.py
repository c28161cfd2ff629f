"""A state is all that it takes to go on with a text, and nothing else is taken for one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tiny_models import TINY, random_checkpoint

from mlx_pam import durable, generate, load, load_state, stream
from mlx_pam.cli import main
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.language_model import LanguageModel
from mlx_pam.text_state import RECENT, TextState

PROMPT = "The state of the union"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def model(folder) -> LanguageModel:
    return load(folder, "mlx")


def after(model: LanguageModel, path: Path, **settings) -> TextState:
    """The state after a text, by way of a file."""
    pieces = stream(model, PROMPT, **settings)
    for _ in pieces:
        pass
    return load_state(model, pieces.state().save(path))


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_draws_and_penalties_go_on(folder, backend, tmp_path, temperature, penalty):
    model = load(folder, backend.name)
    settings = {"temperature": temperature, "repetition_penalty": penalty, "top_k": 0, "top_p": 1.0}
    whole = generate(model, PROMPT, seed=7, max_tokens=40, logprobs=True, **settings)
    tokens, logprobs = (), ()
    state = after(model, tmp_path / "state", seed=7, max_tokens=13, **settings)
    for count in (1, 26):
        pieces = stream(model, "", state=state, max_tokens=count, logprobs=True, **settings)
        list(pieces)
        tokens += pieces.result().tokens
        logprobs += pieces.result().logprobs
        assert pieces.result().seed == 7
        state = pieces.state()
    assert tokens == whole.tokens[13:]
    assert logprobs == whole.logprobs[13:]  # to the bit


def test_a_state_serves_often_and_a_seed_of_ones_own_draws_anew(model, tmp_path):
    state = after(model, tmp_path / "state", seed=7, max_tokens=3)
    first, again = (generate(model, "", state=state, max_tokens=8) for _ in range(2))
    assert first.tokens == again.tokens
    other = generate(model, "", state=state, max_tokens=8, seed=8)
    assert (other.seed, other.tokens == first.tokens) == (8, False)


def test_a_prompt_is_added_to_the_text(model, tmp_path):
    whole = model.decoder()
    expected = whole.prefill([model.tokenizer.encode(PROMPT + " is strong")])[0]
    state = after(model, tmp_path / "state", max_tokens=0)
    pieces = stream(model, " is strong", state=state, max_tokens=0)
    found = pieces.state()
    np.testing.assert_allclose(found.logits, expected, atol=1e-4)
    assert found.tokens == state.tokens + 2
    assert found.recent == state.recent + tuple(model.tokenizer.encode(" is strong"))
    result = generate(model, " is strong", state=state, max_tokens=2)
    assert (result.prompt, result.prompt_tokens, len(result.tokens)) == (" is strong", 2, 2)


def test_the_state_may_be_asked_for_between_two_pieces(model):
    whole = generate(model, PROMPT, seed=3, max_tokens=12)
    pieces = stream(model, PROMPT, seed=3, max_tokens=12)
    next(pieces)
    state, drawn = pieces.state(), len(pieces.result().tokens)
    list(pieces)
    assert pieces.result().tokens == whole.tokens  # it was not disturbed
    went_on = generate(model, "", state=state, max_tokens=12 - drawn)
    assert went_on.tokens == whole.tokens[drawn:]


def test_a_character_cut_in_two_is_completed(model):
    tokens = model.tokenizer.encode("🦜")
    assert len(tokens) > 2
    pieces = stream(model, tokens[:-1], max_tokens=0)
    state = pieces.state()
    certain = np.full(len(state.logits), -100.0, np.float32)
    certain[tokens[-1]] = 100.0
    state = TextState(**{**vars(state), "logits": certain})
    assert generate(model, "", state=state, max_tokens=1).text == "🦜"


def test_another_backend_goes_on(folder, model, tmp_path):
    pytest.importorskip("torch")
    other = load(folder, "torch")
    path = tmp_path / "state"
    after(model, path, max_tokens=5, temperature=0)
    expected = generate(model, "", state=load_state(model, path), temperature=0, max_tokens=20)
    found = generate(other, "", state=load_state(other, path), temperature=0, max_tokens=20)
    assert found.tokens == expected.tokens


def test_a_penalty_that_needs_more_than_is_kept_is_an_error(model, tmp_path):
    long = stream(model, [11, 12, 13] * 500, max_tokens=0).state()
    assert (long.tokens, len(long.recent)) == (1500, RECENT)
    for window in (0, RECENT + 1):
        with pytest.raises(ConfigError, match=f"repetition_window must be 1 to {RECENT} with"):
            generate(model, "", state=long, repetition_penalty=1.2, repetition_window=window)
    generate(model, "", state=long, repetition_penalty=1.0, repetition_window=0, max_tokens=1)
    short = after(model, tmp_path / "state", max_tokens=1)
    generate(model, "", state=short, repetition_penalty=1.2, repetition_window=0, max_tokens=1)


def test_a_state_belongs_to_one_text_and_one_model(model, tmp_path):
    state = after(model, tmp_path / "state", max_tokens=1)
    with pytest.raises(ConfigError, match="prompt must be one text with a state, got '2 texts'"):
        generate(model, ["a", "b"], state=state)
    from mlx_pam.parameters import initial_weights

    weights = model.backend.build(TINY, initial_weights(TINY, seed=1))
    other = LanguageModel(TINY, model.tokenizer, model.backend, weights)
    with pytest.raises(CheckpointError, match="the state is of another model"):
        generate(other, "", state=state)


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(path.with_name("executed"))))


def weights(path: Path) -> None:
    save_file({"head.weight": np.zeros(3, np.float32)}, path)


def changed(**changes) -> object:
    """A damage that changes tensors, or texts of the header."""

    def change(path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata()
        arrays = load_file(path)
        for name, value in changes.items():
            if isinstance(value, str):
                texts[name] = value
            elif value is None:
                arrays.pop(name)
            else:
                arrays[name] = value
        save_file(arrays, path, texts)

    return change


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_text("no state " * 500), "is damaged"),
        (cut, "is damaged"),
        (pickled, "is damaged"),
        (weights, "is not a saved state"),
        (changed(format="mlx_pam text state 2"), "is not a saved state"),
        (changed(logits=None), "lacks logits"),
        (changed(more=np.zeros(2, np.float32)), "has unknown more"),
        (changed(positions=np.array([9], np.int64)), "is damaged"),
        (changed(tokens="many"), "is damaged"),
        (changed(logits=np.full(50257, np.nan, np.float32)), "50,257 NaN"),
    ],
)
def test_what_is_no_whole_state_is_a_clean_error(
    folder, model, tmp_path, capsys, damage, complaint
):
    path = tmp_path / "state"
    after(model, path, max_tokens=1)
    damage(path)
    words = ["generate", "--checkpoint", str(folder), "--backend", "mlx"]
    assert main([*words, "--state", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path} {complaint}") or complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "executed").exists()


def test_a_state_is_written_whole_or_not_at_all(model, tmp_path, monkeypatch):
    path = tmp_path / "state"
    first = after(model, path, max_tokens=1)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for owner, name in ((durable, "save_file"), (os, "fsync"), (Path, "replace"), (Path, "touch")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(CheckpointError, match=rf"cannot write state {path}: .*No space"):
                after(model, path, max_tokens=2)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]
    assert load_state(model, path).tokens == first.tokens


def test_a_folder_that_does_not_exist_is_told_before_anything_is_drawn(folder, tmp_path, capsys):
    words = ["generate", "--checkpoint", str(folder), "--prompt", "a"]
    for path in (tmp_path / "no" / "state", tmp_path):
        assert main([*words, "--save-state", str(path)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "--save-state must be a file that can be written" in printed.err
