"""The estimate of a run's memory follows what it is made of, and refuses what cannot fit."""

from __future__ import annotations

import dataclasses
import re
from typing import get_args

import pytest
from small_run import corpus as corpus
from small_run import small

from mlx_pam import footprint
from mlx_pam.backend import get_backend
from mlx_pam.config import PRESETS, Scale, TrainConfig, variant
from mlx_pam.errors import ConfigError
from mlx_pam.parameters import parameter_count
from mlx_pam.training.loop import train

GB = 1_000_000_000
libraries = pytest.mark.parametrize("library", ["mlx", "torch"])


def total(library: str = "mlx", device: str = "cpu", processes: int = 1, **settings) -> int:
    config = TrainConfig(**settings)
    return footprint.estimate(config.model_config(), config, library, device, processes).total


@libraries
@pytest.mark.parametrize("model", PRESETS)
def test_every_preset_has_an_estimate_above_its_states(library, model):
    for scale in get_args(Scale):
        if scale not in PRESETS[model]:
            continue
        for dtype in ("float32", "bfloat16"):
            for device in ("cpu", "cuda", "metal"):
                config = TrainConfig(model=model, scale=scale, dtype=dtype)
                found = footprint.estimate(config.model_config(), config, library, device)
                assert found.states == 12 * parameter_count(config.model_config())
                assert found.total > found.states + found.activations


@libraries
def test_what_saves_memory_is_estimated_to(library):
    whole = total(library, scale="100m", batch_size=16)
    assert total(library, scale="100m", batch_size=8) < whole
    assert total(library, scale="100m", batch_size=16, seq_len=256) < whole
    assert total(library, scale="100m", batch_size=16, dtype="bfloat16") < whole
    assert total(library, scale="100m", batch_size=16, gradient_checkpointing=True) < whole / 3
    assert total(library, "cuda", scale="100m", batch_size=16) < whole
    assert total(library, processes=4, scale="100m", batch_size=16) < whole
    shared = total(library, processes=4, scale="100m", batch_size=16, parallel="fsdp")
    assert shared < total(library, processes=4, scale="100m", batch_size=16)


@libraries
def test_activations_grow_with_the_tokens_and_blocks(library):
    def activations(**settings) -> int:
        config = TrainConfig(scale="100m", dtype="bfloat16", **settings)
        model = config.model_config()
        return footprint.estimate(model, config, library, "metal").activations

    once, twice, thrice = (activations(batch_size=size) for size in (4, 8, 12))
    assert thrice - twice == pytest.approx(twice - once, rel=1e-6)
    assert activations(batch_size=4, seq_len=1024) == pytest.approx(twice, rel=1e-6)


@libraries
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_largest_batch_is_the_last_that_fits(library, checkpointing):
    config = TrainConfig(scale="25m", gradient_checkpointing=checkpointing)
    model = config.model_config()
    size = footprint.largest_batch(model, config, library, "cpu", 8 * GB)
    assert size > 8
    for batch_size, fits in ((size, True), (size + 1, False)):
        changed = dataclasses.replace(config, batch_size=batch_size)
        assert (footprint.estimate(model, changed, library, "cpu").total <= 8 * GB) == fits
    assert footprint.largest_batch(model, config, library, "cpu", GB // 10) == 0


@libraries
def test_what_an_error_names_fits_and_takes_the_same_steps(library):
    config = TrainConfig(scale="100m", batch_size=48, memory_limit=12)
    model = config.model_config()
    with pytest.raises(ConfigError, match="memory_limit must be at least ") as error:
        footprint.require_room(model, config, library, "cpu", room=GB)
    named = re.findall(r"((?:--[a-z-]+(?: \d+)? )+)\((\S+) GB\)", str(error.value))
    assert len(named) == 2
    for options, size in named:
        found = dict(re.findall(r"--(batch-size|accumulate) (\d+)", options))
        changed = dataclasses.replace(
            config,
            gradient_checkpointing="--gradient-checkpointing" in options,
            batch_size=int(found.get("batch-size", 48)),
            accumulate=int(found.get("accumulate", 1)),
        )
        assert changed.windows_per_step == 48
        needed = footprint.require_room(model, changed, library, "cpu", room=GB).total
        assert needed == pytest.approx(float(size) * GB, abs=GB / 10)


def test_what_fits_is_found_without_a_look_at_every_smaller_batch(monkeypatch):
    looked, estimate = [], footprint.estimate

    def counted(*given):
        looked.append(given)
        return estimate(*given)

    monkeypatch.setattr(footprint, "estimate", counted)
    config = TrainConfig(batch_size=10**9, memory_limit=8)
    with pytest.raises(ConfigError, match=r"--batch-size \d+ --accumulate \d+"):
        footprint.require_room(config.model_config(), config, "mlx", "cpu", GB)
    assert len(looked) < 200


def test_a_batch_of_several_processes_is_offered_in_their_multiples():
    config = TrainConfig(scale="100m", batch_size=48, memory_limit=5)
    with pytest.raises(ConfigError) as error:
        footprint.require_room(config.model_config(), config, "mlx", "metal", GB, processes=6)
    sizes = re.findall(r"--batch-size (\d+)", str(error.value))
    assert sizes
    assert all(int(size) % 6 == 0 for size in sizes)


def test_what_fits_in_no_way_says_so():
    config = TrainConfig(scale="100m")
    with pytest.raises(ConfigError, match=r"^memory must be .* smaller --scale .*--memory-limit"):
        footprint.require_room(config.model_config(), config, "torch", "cpu", room=GB)


def test_a_variant_counts_as_its_family():
    config = TrainConfig(scale="5m")
    model = variant(config.model_config(), "no-rotary")
    assert footprint.estimate(model, config, "mlx", "cpu").total == total(scale="5m")


def test_a_run_beyond_its_limit_is_refused_before_anything_is_written(backend, corpus, tmp_path):
    out = tmp_path / "run"
    config = small(corpus, out, backend=backend.name, scale="5m", memory_limit=0.2)
    with pytest.raises(ConfigError, match=r"memory_limit must be at least .*, got 0.2 GB"):
        train(config)
    assert not (out / "log.jsonl").exists()


def test_metal_keeps_to_the_limit_and_gives_back_what_a_step_does_not_need(monkeypatch):
    mlx = get_backend("mlx")
    import mlx.core as mx

    said = {}
    monkeypatch.setattr(type(mlx), "device", "metal")
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 10 * GB})
    for name in ("set_memory_limit", "set_cache_limit", "set_wired_limit"):
        monkeypatch.setattr(mx, name, lambda size, name=name: said.update({name: size}))
    assert mlx.memory_bytes() == 10 * GB
    mlx.limit_memory(6 * GB)
    assert said == {
        "set_memory_limit": 6 * GB, "set_cache_limit": 3 * GB, "set_wired_limit": 6 * GB,
    }  # fmt: skip
    mlx.limit_memory(20 * GB)
    assert said["set_wired_limit"] == 10 * GB  # more is an error
