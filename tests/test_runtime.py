"""A backend's learner is AdamW on the mean loss, and its decoder is the model token by token."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import oracle
import pytest

from mlx_pam import decoder_state
from mlx_pam.backend import get_backend
from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig, recipe_for
from mlx_pam.decoder_state import ROOM_STEP, state_shapes
from mlx_pam.errors import CheckpointError
from mlx_pam.parameters import initial_weights, is_decayed, parameter_table

SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 60}
PAM = PAMConfig(**SIZES)
FAMILIES = {"pam": PAM, "sam": SAMConfig(**SIZES), "transformer": TransformerConfig(**SIZES)}
every_family = pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
RECIPE = dataclasses.replace(recipe_for("tuned", "pam", "5m"), clip_norm=0.5, weight_decay=0.1)


def windows(seed: int, rows: int = 4, time: int = 33) -> np.ndarray:
    return np.random.default_rng(seed).integers(60, size=(rows, time + 1)).astype(np.int32)


def oracle_loss(config, weights, batch) -> float:
    logits = oracle.model_logits(config, weights, batch[:, :-1])
    logits = logits - logits.max(axis=-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probabilities, batch[:, 1:, None], axis=-1).sum()


@every_family
def test_losses_in_training_and_in_evaluation_are_the_oracles(backend, config):
    batch = windows(0)
    learner = backend.Learner(backend.build(config, seed=3), RECIPE, "float32")
    expected = oracle_loss(config, initial_weights(config, 3), batch)
    assert learner.gradient(batch, 132) == pytest.approx(expected, rel=1e-6)
    assert learner.evaluate(batch, np.ones((4, 33), bool)) == pytest.approx(expected, rel=1e-6)
    mask = np.zeros((4, 33), bool)
    mask[2, :20] = True
    alone = oracle_loss(config, initial_weights(config, 3), batch[2:3, :21])
    assert learner.evaluate(batch, mask) == pytest.approx(alone, rel=1e-6)


def test_an_update_is_clipped_adamw_with_bias_correction(backend):
    """Three steps against the formula in float64, from the gradients that Adam's moments reveal."""
    learner = backend.Learner(backend.build(PAM, seed=3), RECIPE, "float32")
    table = parameter_table(PAM)
    weights = {name: value.astype(np.float64) for name, value in learner.weights().items()}
    m = {name: np.zeros(value.shape) for name, value in weights.items()}
    v = {name: np.zeros(value.shape) for name, value in weights.items()}
    (b1, b2), lr = RECIPE.betas, 3e-3
    for step in (1, 2, 3):
        learner.gradient(windows(step), 132)
        norm = learner.gradient_norm()
        assert norm > RECIPE.clip_norm  # the clip is at work
        learner.update(lr)
        record = learner.optimizer()
        assert record["step"] == step
        squares = 0.0
        for name in weights:
            gradient = (record[f"exp_avg.{name}"] - b1 * m[name]) / (1 - b1)
            squares += np.sum(gradient**2)
            m[name] = b1 * m[name] + (1 - b1) * gradient
            v[name] = b2 * v[name] + (1 - b2) * gradient**2
            decay = RECIPE.weight_decay if is_decayed(table[name]) else 0.0
            weights[name] *= 1 - lr * decay
            weights[name] -= (
                lr
                * (m[name] / (1 - b1**step))
                / (np.sqrt(v[name] / (1 - b2**step)) + RECIPE.adam_eps)
            )
        assert np.sqrt(squares) == pytest.approx(RECIPE.clip_norm, rel=1e-4)
    for name, value in learner.weights().items():
        np.testing.assert_allclose(value, weights[name], atol=2e-5, err_msg=name)


def test_a_norm_that_is_known_is_not_computed_again_and_changes_no_bit(backend, monkeypatch):
    after = []
    for known in (False, True):
        learner = backend.Learner(backend.build(PAM, seed=3), RECIPE, "float32")
        for step in (1, 2):
            learner.gradient(windows(step), 132)
            norm = learner.gradient_norm()
            with monkeypatch.context() as patch:
                if known:
                    patch.delattr(backend.Learner, "gradient_norm")
                learner.update(3e-3, *[norm] * known)
        after.append(learner.weights())
    for name, array in after[0].items():
        np.testing.assert_array_equal(after[1][name], array, err_msg=name)


def test_accumulated_gradients_are_those_of_the_whole_batch(backend):
    batch = windows(0)
    norms = []
    for parts in (1, 2, 4):
        learner = backend.Learner(backend.build(PAM, seed=3), RECIPE, "float32")
        for part in np.split(batch, parts):
            learner.gradient(part, 132)
        norms.append(learner.gradient_norm())
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-5)


def test_a_discarded_gradient_leaves_no_trace(backend):
    learner = backend.Learner(backend.build(PAM, seed=3), RECIPE, "float32")
    learner.gradient(windows(0), 132)
    expected = learner.gradient_norm()
    learner.discard()
    learner.gradient(windows(0), 132)
    assert learner.gradient_norm() == expected


@every_family
def test_bfloat16_arithmetic_keeps_float32_masters_and_about_the_loss(backend, config):
    batch = windows(0)
    learner = backend.Learner(backend.build(config, seed=3), RECIPE, "bfloat16")
    expected = oracle_loss(config, initial_weights(config, 3), batch)
    assert learner.gradient(batch, 132) == pytest.approx(expected, rel=5e-3)
    before = learner.weights()
    learner.update(1e-6)  # far below the resolution of bfloat16 at 1
    after = learner.weights()
    assert all(value.dtype == np.float32 for value in after.values())
    assert all(not np.array_equal(before[name], after[name]) for name in after if "weight" in name)


@every_family
def test_a_batch_that_is_repeated_is_learned(backend, config):
    learner = backend.Learner(backend.build(config, seed=3), RECIPE, "float32")
    losses = []
    for _ in range(30):
        losses.append(learner.gradient(windows(0), 132))
        learner.update(1e-2)
    assert losses[-1] < 0.5 * losses[0]


@every_family
def test_restored_weights_and_moments_continue_to_the_bit(backend, config):
    whole = backend.Learner(backend.build(config, seed=3), RECIPE, "float32")
    losses = []
    for step in range(4):
        losses.append(whole.gradient(windows(step), 132))
        whole.update(1e-2)
        if step == 1:
            weights, optimizer = whole.weights(), whole.optimizer()
    second = backend.Learner(backend.build(config, seed=9), RECIPE, "float32")
    second.restore(weights, optimizer)
    for step in (2, 3):
        assert second.gradient(windows(step), 132) == losses[step]
        second.update(1e-2)
    for name, value in whole.weights().items():
        assert np.array_equal(value, second.weights()[name]), name


@every_family
def test_prefill_and_steps_are_the_full_pass_for_rows_of_any_length(backend, config):
    texts = [
        windows(0, 1, 40)[0].tolist(),
        windows(1, 1, 2)[0].tolist(),
        windows(2, 1, 17)[0].tolist(),
    ]
    prompts = [text[: max(1, len(text) // 2)] for text in texts]
    weights = initial_weights(config, 3)
    decoder = backend.Decoder(backend.build(config, weights))
    logits = [decoder.prefill(prompts)]
    for step in range(3):
        tokens = np.array(
            [
                text[(len(prompt) + step) % len(text)]
                for text, prompt in zip(texts, prompts, strict=True)
            ]
        )
        prompts = [[*prompt, token] for prompt, token in zip(prompts, tokens.tolist(), strict=True)]
        logits.append(decoder.step(tokens))
    for row, prompt in enumerate(prompts):
        expected = oracle.model_logits(config, weights, np.array([prompt]))[0, -4:]
        assert oracle.relative_error(np.stack([x[row] for x in logits]), expected) < 2e-5


@every_family
def test_a_prompt_longer_than_one_prefill_piece_is_read_whole(backend, config):
    texts = [windows(0, 1, 2560)[0], windows(1, 1, 1023)[0]]
    prompts = [text[:-2].tolist() for text in texts]
    weights = initial_weights(config, 3)
    decoder = backend.Decoder(backend.build(config, weights))
    logits = [decoder.prefill(prompts)]
    logits += [decoder.step(np.array([text[at] for text in texts])) for at in (-2, -1)]
    for row, text in enumerate(texts):
        expected = oracle.model_logits(config, weights, text[None])[0, -3:]
        assert oracle.relative_error(np.stack([x[row] for x in logits]), expected) < 2e-5


@every_family
def test_extend_after_a_restored_state_is_token_by_token(backend, config, monkeypatch):
    module = importlib.import_module(type(backend).__module__)
    monkeypatch.setattr(module, "PREFILL_TOKENS", 16)
    monkeypatch.setattr(decoder_state, "ROOM_STEP", 16)
    texts, weights, chunks = windows(0, 2, 90), initial_weights(config, 3), []
    begun, model = [texts[0, :20].tolist(), texts[1, :7].tolist()], backend.build(config, weights)
    first, second = backend.Decoder(model), backend.Decoder(model)
    first.prefill(begun)
    second.restore(first.state())
    more = [texts[0, 20:23].tolist(), texts[1, 7:70].tolist()]
    logits = [second.extend(more, lambda: chunks.append(None))]
    logits.append(second.step(texts[[0, 1], [23, 70]]))
    assert len(chunks) == 4
    for row, end in enumerate((24, 71)):
        expected = oracle.model_logits(config, weights, texts[row : row + 1, :end])[0, -2:]
        assert oracle.relative_error(np.stack([x[row] for x in logits]), expected) < 2e-5


@every_family
def test_steps_go_on_past_the_room_that_was_made_at_first(backend, config):
    texts = windows(0, 2, 2 * ROOM_STEP + 8)
    weights = initial_weights(config, 3)
    decoder = backend.Decoder(backend.build(config, weights))
    first = ROOM_STEP - 4
    logits = [decoder.prefill([texts[0, :first].tolist(), texts[1, : first - 9].tolist()])]
    for at in range(first, texts.shape[1]):
        logits.append(decoder.step(texts[[0, 1], [at, at - 9]]))
    for row, text in enumerate((texts[0], texts[1, :-9])):
        expected = oracle.model_logits(config, weights, text[None])[0, -len(logits) :]
        assert oracle.relative_error(np.stack([x[row] for x in logits]), expected) < 2e-5


@every_family
@pytest.mark.parametrize("other", ["mlx", "torch"])
def test_a_state_moves_to_another_decoder_and_keeps_what_it_was(backend, config, other):
    pytest.importorskip(other)
    weights = initial_weights(config, 3)
    first = backend.Decoder(backend.build(config, weights))
    first.prefill([windows(1, 1, 300)[0].tolist(), [4]])
    state, tokens = first.state(), np.array([[5, 6], [7, 8]])
    shapes = state_shapes(config, 2, 301)
    assert {name: array.shape for name, array in state.items()} == shapes | {"positions": (2,)}
    saved = {name: array.copy() for name, array in state.items()}
    expected = [first.step(row) for row in tokens]
    assert all(np.array_equal(state[name], array) for name, array in saved.items())
    other = get_backend(other)
    second = other.Decoder(other.build(config, weights))
    for _ in range(2):
        second.restore(state)
        for row, logits in zip(tokens, expected, strict=True):
            if other.name == backend.name:
                assert np.array_equal(second.step(row), logits)
            else:
                assert oracle.relative_error(second.step(row), logits) < 1e-5


@every_family
def test_the_state_of_another_model_is_refused(backend, config):
    decoder = backend.Decoder(backend.build(config, seed=3))
    decoder.prefill([[1, 2, 3], [4]])
    state = decoder.state()
    for change in ({"head_dim": 4}, {"num_layers": 1}, {"num_layers": 3}):
        other = backend.Decoder(backend.build(dataclasses.replace(config, **change)))
        with pytest.raises(CheckpointError, match="another model"):
            other.restore(state)
