"""What a variant carries of a text: however it is cut, padded, moved or reset, the text goes on."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import oracle
import pytest
from live_model import logits, numpy, tensor
from varied import RESET, SIZES, VARIED

from mlx_pam import checkpoint
from mlx_pam.backend import get_backend
from mlx_pam.config import (
    PRESETS,
    VARIANTS,
    MemoryConfig,
    PAMConfig,
    SAMConfig,
    TransformerConfig,
    recipe_for,
    variant,
)
from mlx_pam.decoder_state import state_shapes
from mlx_pam.errors import CheckpointError, ConfigError
from mlx_pam.models import decode
from mlx_pam.parameters import initial_weights, parameter_count

CARRYING = {
    name: VARIED[name]
    for name in ("pam, recall", "sam, recall", "pam, hybrid", "sam, hybrid",
                 "pam, much at once", "sam, much at once")
}  # fmt: skip
every_variant = pytest.mark.parametrize("config", VARIED.values(), ids=VARIED)
carrying = pytest.mark.parametrize("config", CARRYING.values(), ids=CARRYING)


def text(tokens: int, seed: int = 2, resets: tuple[int, ...] = ()) -> np.ndarray:
    """Token ids, the reset token at these places."""
    ids = np.random.default_rng(seed).integers(RESET, size=tokens)
    ids[list(resets)] = RESET
    return ids


def error(found: np.ndarray, expected: np.ndarray, config: MemoryConfig) -> float:
    """In units of what rounding may do; more where the phases of numbers near 0 are taken."""
    return oracle.relative_error(found, expected) / (2e-4 if config.qk_norm == "phase" else 2e-5)


@every_variant
def test_prompts_of_any_length_and_steps_are_the_full_pass(backend, config, monkeypatch):
    """Prompts are read in pieces, in most of which some row has come to its end."""
    monkeypatch.setattr(f"{backend.Decoder.__module__}.PREFILL_TOKENS", 4)
    rows = [text(n, n, resets) for n, resets in ((17, (7, 15)), (5, ()), (6, (4,)), (25, (12, 21)))]
    weights = initial_weights(config, 3)
    decoder = backend.Decoder(backend.build(config, weights))
    found = [decoder.prefill([row[:-4].tolist() for row in rows])]
    found += [decoder.step(np.array([row[at] for row in rows])) for at in (-4, -3, -2, -1)]
    for i, row in enumerate(rows):
        expected = oracle.model_logits(config, weights, row[None])[0, -5:]
        assert error(np.stack([logits[i] for logits in found]), expected, config) < 1, i


@carrying
@pytest.mark.parametrize("resets", [(), (0,), (5,), (6, 7), (11,), (4, 10)])
def test_wherever_a_text_is_cut_and_reset_it_is_the_text(backend, config, resets):
    ids = text(12, 1, resets)[None]
    model = backend.build(config, seed=4)
    expected = logits(backend, model, ids)
    for cuts in ([6], [5, 6, 7], range(1, 12)):
        state, found = None, []
        for piece in np.split(ids, cuts, axis=1):
            logits_here, state = model.forward(tensor(backend, model, piece), state)
            found.append(numpy(logits_here))
        assert error(np.concatenate(found, axis=1), expected, config) < 1, cuts


@carrying
def test_padding_leaves_what_is_carried_as_it_was_to_the_bit(backend, config):
    """The padding is the reset token, which resets nothing there."""
    model = backend.build(config, seed=4)
    first = np.stack([text(9, 1), text(9, 2, (3,))])
    _, before = model.forward(tensor(backend, model, first))
    padding = tensor(backend, model, np.full((2, 4), RESET))
    nothing = tensor(backend, model, np.zeros((2, 4), bool))
    _, after = model.forward(padding, before, nothing)
    for kept, array in zip(before.memories, after.memories, strict=True):
        np.testing.assert_array_equal(numpy(kept), numpy(array))
    np.testing.assert_array_equal(after.positions, before.positions)
    _, nowhere = model.forward(padding, None, nothing)
    assert not any(numpy(array).any() for array in nowhere.memories)

    ids = np.stack([text(6, 5), np.append(text(2, 6), [RESET] * 4)])
    real = tensor(backend, model, np.arange(6) < np.array([[6], [2]]))
    _, together = model.forward(tensor(backend, model, ids), before, real)
    for row, tokens in ((0, 6), (1, 2)):
        alone = [memory[row : row + 1] for memory in before.memories]
        state = dataclasses.replace(before, memories=alone, positions=before.positions[[row]])
        _, alone = model.forward(tensor(backend, model, ids[row : row + 1, :tokens]), state)
        for one, both in zip(alone.memories, together.memories, strict=True):
            assert error(numpy(both)[row], numpy(one)[0], config) < 1


@every_variant
@pytest.mark.parametrize("other", ["mlx", "torch"])
def test_a_state_has_one_size_and_moves_to_another_decoder(backend, config, other):
    pytest.importorskip(other)
    weights = initial_weights(config, 3)
    first = backend.Decoder(backend.build(config, weights))
    shapes = state_shapes(config, 2, 0) | {"positions": (2,)}
    for prompts in ([[3], [4]], [text(30).tolist(), [5, RESET, 4]]):
        first.prefill(prompts)
        state = first.state()
        assert {name: array.shape for name, array in state.items()} == shapes
    second = get_backend(other)
    second = second.Decoder(second.build(config, weights))
    second.restore(state)
    found = second.extend([[7, 8, RESET, 9], [6, 5]])
    for prompt in ([7, 6], [8, 5]):
        expected = first.step(np.array(prompt))
    assert error(found[1], expected[1], config) < 1
    second.restore(first.state())
    for tokens in ([5, 6], [RESET, 8], [9, 10]):
        found, expected = (decoder.step(np.array(tokens)) for decoder in (second, first))
        assert error(found, expected, config) < 1


@pytest.mark.parametrize("name", ["pam, hybrid", "sam, hybrid", "sam, much at once"])
def test_attention_to_a_window_is_the_same_for_however_many_queries_at_once(
    backend, name, monkeypatch
):
    config, ids = VARIED[name], text(30, 3, (8, 20))[None]
    weights = initial_weights(config, 3)
    expected = oracle.model_logits(config, weights, ids)
    window = {"mlx": "mlx_pam.layers.window", "torch": "mlx_pam.torch.layers.window"}[backend.name]
    for queries in (1, 4, 7):
        monkeypatch.setattr(f"{window}.QUERIES", queries)
        found = logits(backend, backend.build(config, weights), ids)
        assert error(found, expected, config) < 1, queries


def test_a_state_of_another_variant_is_refused(backend):
    states = {}
    for name in ("pam, recall", "pam, hybrid", "pam, no-gate", "pam, much at once"):
        decoder = backend.Decoder(backend.build(VARIED[name]))
        decoder.prefill([[1, 2]])
        states[name] = decoder, decoder.state()
    for name, (decoder, _) in states.items():
        for other, (_, state) in states.items():
            if name != other:
                with pytest.raises(CheckpointError, match="another model"):
                    decoder.restore(state)


@every_variant
def test_learners_take_the_oracles_loss_recomputed_and_in_bfloat16_too(backend, config):
    batch = np.stack([text(34, 1, (9, 20)), text(34, 2)]).astype(np.int32)
    model = backend.build(config, seed=3)
    exact = oracle.model_logits(config, initial_weights(config, 3), batch[:, :-1])
    exact = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(exact, batch[:, 1:, None], axis=-1).sum()
    learner = backend.Learner(model, recipe_for("tuned", "pam", "5m"), "float32")
    assert learner.gradient(batch, 66) == pytest.approx(expected, rel=1e-5)
    norm = learner.gradient_norm()
    learner.discard()
    again = backend.Learner(model, recipe_for("tuned", "pam", "5m"), "float32", recompute=True)
    again.gradient(batch, 66)
    assert again.gradient_norm() == pytest.approx(norm, rel=1e-5)
    again.discard()
    rough = backend.Learner(model, recipe_for("tuned", "pam", "5m"), "bfloat16")
    assert rough.gradient(batch, 66) == pytest.approx(expected, rel=0.02)


# The table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_every_change_of_a_variant_is_one_and_is_told_in_a_line(name):
    plain, change = PAMConfig(**SIZES | {"alpha_pam_init": 0.1}), VARIANTS[name]
    varied = variant(plain, name)
    assert {
        field.name: getattr(varied, field.name)
        for field in dataclasses.fields(varied)
        if getattr(varied, field.name) != getattr(plain, field.name)
    } == change.fields
    assert change.help
    assert "\n" not in change.help
    assert len(change.help) < 80


def test_parts_that_are_left_out_leave_their_weights_and_parts_added_bring_them():
    sizes = {"dim": 12, "num_layers": 4, "num_heads": 3, "head_dim": 8, "vocab_size": 50}
    plain = PAMConfig(**sizes)
    more = {name: parameter_count(variant(plain, name)) - parameter_count(plain)
            for name in VARIANTS}  # fmt: skip
    assert more == {
        "sequential": 0,
        "no-rotary": 0,
        "no-gate": -4 * 3 * (12 + 1),
        "channel-gate": 4 * (3 * 8 - 3) * (12 + 1),
        "fixed-decay": -4 * 3 * (2 * 12 + 1),
        "phase-qk": 0,
        "hybrid": 2 * 4 * 3 * 8 * 12 + 12 + 1,
        "recall": 4 * (2 * 9 * 2 * 8 + 3),
        "smooth-phase": 0,
    }


def test_a_variant_that_cannot_be_is_refused():
    plain = PAMConfig(**SIZES)
    with pytest.raises(ConfigError, match=r"variant must be one of sequential, .*got 'none'"):
        variant(plain, "none")
    transformer = TransformerConfig(dim=8, num_layers=1, num_heads=1, head_dim=8)
    with pytest.raises(ConfigError, match="variant must be absent with model transformer"):
        variant(transformer, "recall")
    with pytest.raises(ConfigError, match="qk_norm must be head or None with model sam"):
        variant(SAMConfig(**SIZES), "phase-qk")
    with pytest.raises(ConfigError, match="be smooth-phase here: model sam has no phase_eps"):
        variant(SAMConfig(**SIZES), "smooth-phase")
    with pytest.raises(ConfigError, match=r"attention_every must be .* <= 3, got 4"):
        variant(dataclasses.replace(plain, num_layers=3), "hybrid")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protect", None),
        ("order", "random"),
        ("rotary", 1),
        ("fixed_decay", 0.0),
        ("fixed_decay", 1.1),
        ("qk_norm", "none"),
        ("query_scale", 0.0),
        ("conv_width", 0),
        ("conv_width", 17),
        ("attention_every", 0),
        ("attention_every", 5),
        ("attention_window", 1),
        ("alpha_attention_init", float("nan")),
        ("phase_eps", -0.1),
        ("phase_eps", 1e-13),
        ("phase_eps", float("inf")),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"^{field} must be .*got {value!r}"):
        PAMConfig(**SIZES | {field: value})


def test_checkpoints_without_the_fields_are_the_plain_model(tmp_path):
    plain = PAMConfig(dim=12, num_layers=1, num_heads=2, head_dim=4, vocab_size=50)
    folder = checkpoint.save(tmp_path / "new", plain, initial_weights(plain))
    record = json.loads((folder / checkpoint.CONFIG).read_text())
    names = [*record]
    for name in names[names.index("alpha_pam_init") + 1 :]:
        del record[name]
    (folder / checkpoint.CONFIG).write_text(json.dumps(record))
    (folder / checkpoint.COMPLETE).unlink()
    assert checkpoint.load(folder).config == plain


@pytest.mark.parametrize("name", VARIANTS)
def test_kernels_of_a_decoded_token_leave_variants_to_the_ordinary_path(name):
    varied = variant(PRESETS["pam"]["100m"], name)
    assert decode.supported(varied) == (name == "channel-gate")
