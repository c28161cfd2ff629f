"""What is saved is what is loaded, to the bit: configurations, checkpoints, texts."""

from __future__ import annotations

import dataclasses
import json
import shlex
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as some
from properties.configs import configs
from properties.examples import examples

from mlx_pam import checkpoint
from mlx_pam.backend import get_backend
from mlx_pam.cli.arguments import parse
from mlx_pam.config import GPT2_VOCABULARY, TrainConfig, model_config
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.generate import generate, stream
from mlx_pam.language_model import LanguageModel
from mlx_pam.parameters import initial_weights, parameter_table
from mlx_pam.text_state import load_state

values = some.none() | some.booleans() | some.integers() | some.text()
values |= some.floats(allow_nan=False, allow_infinity=False)
records = some.recursive(
    values,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@examples(100)
@given(configs())
def test_a_configuration_is_its_record(config):
    assert model_config(json.loads(json.dumps(config.to_dict()))) == config


@examples(25)
@given(configs(), some.dictionaries(some.text(), records, max_size=3), some.integers(0, 99))
def test_a_checkpoint_is_what_was_saved(config, training, seed):
    weights = initial_weights(config, seed)
    random = np.random.default_rng(seed)
    moments = {
        f"{moment}.{name}": random.normal(size=weight.shape).astype(np.float32)
        for moment in checkpoint.MOMENTS
        for name, weight in weights.items()
    } | {"step": np.array(seed)}
    assert {name: w.shape for name, w in weights.items()} == {
        name: parameter.shape for name, parameter in parameter_table(config).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        saved = checkpoint.save(Path(folder) / "model", config, weights, moments, training)
        assert checkpoint.is_complete(saved)
        found = checkpoint.load(saved, optimizer=True)
    assert found.config == config
    assert found.training == training
    for expected, arrays in ((weights, found.weights), (moments, found.optimizer)):
        assert set(arrays) == set(expected)
        for name, array in expected.items():
            assert arrays[name].dtype == array.dtype
            assert arrays[name].tobytes() == np.asarray(array).tobytes()


@examples(6)
@given(
    configs(GPT2_VOCABULARY),
    some.text(max_size=8) | some.lists(some.integers(0, GPT2_VOCABULARY - 1), max_size=8),
    some.integers(0, 5),
    some.floats(0, 2),
    some.integers(0, 2**70),
)
def test_a_text_goes_on_from_its_state_as_if_it_had_never_stopped(
    config, prompt, drawn, temperature, seed
):
    backend = get_backend("mlx")
    model = LanguageModel(config, gpt2(), backend, backend.build(config, seed=1))
    settings = {"temperature": temperature, "repetition_penalty": 1.3}
    whole = generate(model, prompt, max_tokens=drawn + 4, seed=seed, **settings)
    pieces = stream(model, prompt, max_tokens=drawn, seed=seed, **settings)
    list(pieces)
    state = pieces.state()
    with tempfile.TemporaryDirectory() as folder:
        found = load_state(model, state.save(Path(folder) / "state"))
    assert (found.seed, found.recent, found.tokens) == (seed, state.recent, state.tokens)
    for name, array in state.memories.items():
        assert found.memories[name].tobytes() == np.asarray(array).tobytes()
    if gpt2().end_of_text in whole.tokens[:drawn]:
        return
    rest = generate(model, "", state=found, max_tokens=4, **settings)
    assert pieces.result().tokens + rest.tokens == whole.tokens


@examples(50)
@given(some.data())
def test_a_run_is_its_command_line(data):
    """The command that a run tells, read by the command line, is the run."""
    texts = some.text(min_size=1, max_size=9).filter(str.strip)
    changes = {
        "data": texts.filter(lambda text: "*" not in text),
        "sample_prompt": some.text(max_size=9),
        "out": some.none() | some.just(Path("a b/c")),
        "steps": some.none() | some.integers(1, 10**12),
        "lr": some.none() | some.floats(1e-12, 1),
        "weight_decay": some.none() | some.floats(0, 1),
        "seed": some.integers(0, 2**70),
        "json": some.booleans(),
        "model": some.sampled_from(("pam", "sam", "sam-matched", "transformer")),
        "track": some.lists(some.sampled_from(("wandb", "tensorboard")), max_size=2).map(tuple),
    }
    config = TrainConfig(**{name: data.draw(values) for name, values in changes.items()})
    words = shlex.split(config.command_line())
    assert words[:2] == ["mlx_pam", "train"]
    read = parse(TrainConfig, words[2:], prog="mlx_pam train", description="")
    assert dataclasses.asdict(read) == dataclasses.asdict(config)
