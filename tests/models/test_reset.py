"""A reset token begins a text: what follows it is what a fresh start at it would give."""

from __future__ import annotations

import json

import numpy as np
import oracle
import pytest
from live_model import logits, numpy, tensor

from mlx_pam import checkpoint
from mlx_pam.config import ModelConfig, PAMConfig, SAMConfig, recipe_for
from mlx_pam.errors import ConfigError
from mlx_pam.ops.retrieval import FORMS
from mlx_pam.parameters import initial_weights

RESET = 7
SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "head_dim": 8, "vocab_size": 50}
SIZES |= {"alpha_pam_init": 1.0, "reset_token": RESET}
CONFIGS = {"pam": PAMConfig(**SIZES), "sam": SAMConfig(**SIZES)}
TOLERANCE = 1e-5  # relative to the largest logit; rotary angles of other positions round otherwise

every_memory = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def texts(rows: int, tokens: int, seed: int = 1) -> np.ndarray:
    """Token ids without a reset among them."""
    return np.random.default_rng(seed).integers(RESET + 1, 50, size=(rows, tokens))


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return oracle.relative_error(found, expected) < TOLERANCE


@every_memory
@pytest.mark.parametrize("form", ["auto", *FORMS])
@pytest.mark.parametrize("place", [0, 1, 31, 32, 33, 63, 64, 89])
def test_logits_from_a_boundary_on_are_those_of_a_fresh_start(backend, config, form, place):
    ids = texts(2, 90)
    ids[0, place] = RESET
    model = backend.build(config, seed=2)
    whole = logits(backend, model, ids, form=form)
    assert same(whole[:1, place:], logits(backend, model, ids[:1, place:], form=form))
    ids[0, :place] = texts(1, place, seed=9)
    other = logits(backend, model, ids, form=form)
    np.testing.assert_array_equal(other[0, place:], whole[0, place:])
    np.testing.assert_array_equal(other[1], whole[1])


@every_memory
def test_without_the_token_nothing_is_forgotten(backend, config):
    ids = texts(1, 40)
    model = backend.build(config, seed=2)
    whole = logits(backend, model, ids)
    assert not same(whole[:, 20:], logits(backend, model, ids[:, 20:]))


@every_memory
def test_carried_state_is_forgotten_at_the_token(backend, config):
    model = backend.build(config, seed=2)
    _, state = model.forward(tensor(backend, model, texts(2, 30)))
    ids = texts(2, 20, seed=3)
    ids[:, 0] = RESET
    found, after = model.forward(tensor(backend, model, ids), state)
    expected, fresh = model.forward(tensor(backend, model, ids))
    assert same(numpy(found), numpy(expected))
    # the whole state turned by the angles of the 30 tokens before, so only its size compares
    sizes = [[np.linalg.norm(numpy(memory)) for memory in s.memories] for s in (after, fresh)]
    np.testing.assert_allclose(*sizes, rtol=1e-5)
    assert after.positions.tolist() == [50, 50]


@every_memory
def test_a_window_of_several_documents_is_trained_as_each_of_them_alone(backend, config):
    documents = [np.insert(texts(1, n, seed=n)[0], 0, RESET) for n in (5, 40, 1, 70)]
    window = np.concatenate([*documents, [RESET]]).astype(np.int32)[None]
    learner = backend.Learner(
        backend.build(config, seed=2), recipe_for("tuned", "pam", "5m"), "float32"
    )
    total = window.size - 1
    loss = learner.gradient(window, total)
    norm = learner.gradient_norm()
    assert np.isfinite(norm)
    learner.discard()
    alone = [np.append(document, RESET).astype(np.int32)[None] for document in documents]
    losses = [learner.gradient(document, total) for document in alone]
    assert loss == pytest.approx(sum(losses), rel=1e-6)
    assert learner.gradient_norm() == pytest.approx(norm, rel=1e-5)
    mask = np.ones((1, total), bool)
    assert learner.evaluate(window, mask) == pytest.approx(loss, rel=1e-6)


@every_memory
def test_prompts_and_steps_forget_as_a_text_does(backend, config):
    prompts = [texts(1, n, seed=n)[0].tolist() for n in (3, 40, 1)]
    long = [*texts(1, 50, seed=4)[0].tolist(), RESET, *prompts[1]]
    model = backend.build(config, seed=2)
    decoder, fresh = backend.Decoder(model), backend.Decoder(model)
    found = decoder.prefill([prompts[0], long, prompts[2]])
    expected = fresh.prefill([prompts[0], [RESET, *prompts[1]], prompts[2]])
    assert same(found, expected)
    for tokens in ([20, 21, 22], [RESET, RESET, 23], [24, 25, 26]):
        found, expected = decoder.step(np.array(tokens)), fresh.step(np.array(tokens))
        assert same(found, expected)
    expected = fresh.prefill([[RESET, 24], [RESET, 25], [23, 26]])
    assert same(found[:2], expected[:2])
    assert not same(found[2:], expected[2:])


@every_memory
def test_padding_resets_nothing_even_where_it_is_the_token(backend, config):
    """Rows of a batch are filled up with token 0."""
    config = type(config)(**SIZES | {"reset_token": 0})
    short, long = texts(1, 4)[0].tolist(), texts(1, 60, seed=3)[0].tolist()
    model = backend.build(config, seed=2)
    decoder, alone = backend.Decoder(model), backend.Decoder(model)
    assert same(decoder.prefill([short, long])[:1], alone.prefill([short]))
    assert same(decoder.step(np.array([9, 9]))[:1], alone.step(np.array([9])))


@pytest.mark.parametrize("token", [-1, 50, 1.0])
def test_a_token_that_is_not_of_the_vocabulary_is_refused(token):
    with pytest.raises(ConfigError, match=f"reset_token must be .*, got {token}"):
        PAMConfig(**SIZES | {"reset_token": token})


@every_memory
def test_checkpoints_carry_the_token_and_older_ones_have_none(config: ModelConfig, tmp_path):
    folder = checkpoint.save(tmp_path / "new", config, initial_weights(config, seed=0))
    assert checkpoint.load(folder).config.reset_token == RESET
    record = json.loads((folder / checkpoint.CONFIG).read_text())
    del record["reset_token"]
    (folder / checkpoint.CONFIG).write_text(json.dumps(record))
    (folder / checkpoint.COMPLETE).unlink()
    assert checkpoint.load(folder).config.reset_token is None
