from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from mlx_pam.cli.arguments import parse
from mlx_pam.config import PRESETS, TrainConfig, variant
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "rnn"),
        ("scale", "7q"),
        ("protect", "none"),
        ("data", " "),
        ("steps", 0),
        ("seq_len", 0),
        ("batch_size", -1),
        ("accumulate", 1.5),
        ("recipe", "best"),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("weight_decay", -0.1),
        ("warmup_steps", -1),
        ("clip_norm", 0.0),
        ("seed", -1),
        ("backend", "jax"),
        ("dtype", "float16"),
        ("on_nonfinite", "ignore"),
        ("max_skips", 0),
        ("eval_every", -1),
        ("diagnostics_every", -1),
        ("keep", 0),
        ("stop_after", 0),
        ("sample_tokens", 0),
    ],
)
def test_an_impossible_value_is_refused_by_name_and_value(name, value):
    with pytest.raises(ConfigError) as error:
        TrainConfig(**{name: value})
    assert str(error.value).startswith(f"{name} must be ")
    assert str(error.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(("track", "named"), [("wandb", "wandb"), (("wandb", "mlflow"), "mlflow")])
def test_trackers_are_names_from_a_list(track, named):
    with pytest.raises(ConfigError, match=f"^track must be .*, got '{named}'$"):
        TrainConfig(track=track)


def test_every_family_and_scale_has_its_model():
    for family, presets in PRESETS.items():
        for scale, preset in presets.items():
            assert TrainConfig(model=family, scale=scale).model_config() == preset


def test_a_gate_is_refused_where_there_is_none():
    assert TrainConfig(model="sam", protect="channel").model_config().protect == "channel"
    with pytest.raises(ConfigError, match="protect must be head with model transformer"):
        TrainConfig(model="transformer", protect="channel")


def test_a_variant_changes_the_preset_and_names_the_folder():
    for family in ("pam", "sam-matched"):
        config = TrainConfig(model=family, scale="1m", variant="recall", protect="channel")
        preset = dataclasses.replace(PRESETS[family]["1m"], protect="channel")
        assert config.model_config() == variant(preset, "recall")
        assert config.run_folder == Path(f"runs/{family}-recall-1m-sample")
    assert TrainConfig(variant="no-gate").model_config().protect == "none"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"variant": "best"}, "variant must be one of sequential, .*, got 'best'"),
        ({"model": "transformer", "variant": "recall"}, "variant must be absent with model trans"),
        ({"model": "sam", "variant": "phase-qk"}, "variant cannot be phase-qk here: qk_norm must"),
        ({"variant": "no-gate", "protect": "channel"}, "protect must be head with variant no-gate"),
    ],
)
def test_a_variant_that_does_not_fit_is_refused(settings, said):
    with pytest.raises(ConfigError, match=f"^{said}"):
        TrainConfig(**settings)


def test_documents_reset_a_memory_at_the_end_of_text_token():
    for family in ("pam", "sam"):
        assert TrainConfig(model=family).model_config().reset_token is None
        config = TrainConfig(model=family, reset_at_documents=True).model_config()
        assert config.reset_token == gpt2().end_of_text
    with pytest.raises(ConfigError, match="reset_at_documents must be off with model transformer"):
        TrainConfig(model="transformer", reset_at_documents=True)


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        ("sample", "runs/pam-5m-sample"),
        ("wikitext-103", "runs/pam-5m-wikitext-103"),
        ("hf:roneneldan/TinyStories", "runs/pam-5m-roneneldan-TinyStories"),
        ("hf:owner/name:config", "runs/pam-5m-owner-name-config"),
        ("/texts/my book.txt", "runs/pam-5m-my-book"),
        ("texts/", "runs/pam-5m-texts"),
        ("..", "runs/pam-5m-data"),
        ("texts/pages.jsonl.gz", "runs/pam-5m-pages"),
        ("sample*0.3,hf:owner/name*.7,my/a b.txt*1", "runs/pam-5m-sample+owner-name+a-b"),
    ],
)
def test_run_folder_is_named_after_model_scale_and_data(data, folder):
    assert TrainConfig(data=data).run_folder == Path(folder)


def test_command_line_gives_the_configuration_back():
    config = TrainConfig(
        model="sam",
        data="a text.txt",
        out=Path("runs/x y"),
        steps=30,
        lr=1e-4,
        sample_prompt="-a b",
        track=("wandb", "trackio"),
    )
    words = shlex.split(config.command_line(resume=True))
    assert words[:2] == ["mlx_pam", "train"]
    again = parse(TrainConfig, words[2:], prog="mlx_pam train", description="")
    assert again == TrainConfig(**{**vars(config), "resume": True})
