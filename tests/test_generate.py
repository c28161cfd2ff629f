"""Continuation of prompts, driven by models whose logits are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scripted import saying, scripted, undecided

import mlx_pam
from mlx_pam import checkpoint
from mlx_pam.config import PAMConfig
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import CheckpointError, ConfigError, MlxPamError
from mlx_pam.generate import GenerationConfig, generate, stream
from mlx_pam.language_model import LanguageModel, newest_run
from mlx_pam.sampling import PAPER_SAMPLING, SamplingConfig, distribution

END = gpt2().end_of_text
PROMPT = "Once upon a time"  # four tokens
LENGTH = 4


def test_the_text_is_what_the_tokens_say():
    result = generate(saying(", there was.", LENGTH), PROMPT, max_tokens=4, temperature=0)
    assert result.prompt == PROMPT
    assert result.prompt_tokens == LENGTH
    assert result.text == ", there was."
    assert list(result.tokens) == gpt2().encode(", there was.")
    assert result.finish_reason == "length"


def test_the_end_of_text_token_ends_it_and_is_no_text():
    result = generate(saying(" End", LENGTH), PROMPT, max_tokens=50)
    assert (result.text, result.finish_reason) == (" End", "end")
    assert list(result.tokens) == [*gpt2().encode(" End"), END]


@pytest.mark.parametrize("stop", ["was a", ("absent", "was a"), ["was a", "s a king"]])
def test_a_stop_text_across_tokens_ends_it_and_is_not_shown(stop):
    model = saying(" there was a king", LENGTH)
    pieces = stream(model, PROMPT, stop=stop)
    assert "".join(pieces) == " there "
    assert pieces.result().finish_reason == "stop"
    assert list(pieces.result().tokens) == gpt2().encode(" there was a")


def test_the_start_of_a_stop_text_is_shown_when_nothing_follows():
    result = generate(saying(" a\n", LENGTH), PROMPT, stop="\n\n")
    assert (result.text, result.finish_reason) == (" a\n", "end")
    result = generate(saying(" a\n", LENGTH), PROMPT, stop="\n\n", max_tokens=2)
    assert (result.text, result.finish_reason) == (" a\n", "length")


def test_a_stop_text_in_the_prompt_does_not_stop():
    result = generate(saying(" there", LENGTH), PROMPT, stop="upon", max_tokens=1)
    assert (result.text, result.finish_reason) == (" there", "length")


@pytest.mark.parametrize("text", ["🦜🏳️‍🌈 fin", "相位联想记忆", "é ñ x̂ ạ̈", "נ🙂 שלום"])
def test_streamed_pieces_are_whole_characters(text):
    pieces = list(stream(saying(text, LENGTH), PROMPT, max_tokens=100))
    assert len(pieces) > 1
    assert all(pieces)
    assert "".join(pieces) == text


def test_an_end_inside_a_character_is_flushed_once():
    tokens = gpt2().encode("a🦜")
    assert len(tokens) > 2
    pieces = list(stream(saying(tokens, LENGTH), PROMPT, max_tokens=len(tokens) - 1))
    assert pieces == ["a", "\N{REPLACEMENT CHARACTER}"]
    result = generate(saying(tokens[:-1], LENGTH), PROMPT)
    assert (result.text, result.finish_reason) == ("a\N{REPLACEMENT CHARACTER}", "end")


def test_no_tokens_asked_for_runs_no_model():
    model = scripted(undecided)
    result = generate(model, PROMPT, max_tokens=0)
    assert (result.text, result.tokens, result.finish_reason) == ("", (), "length")
    assert list(stream(model, PROMPT, max_tokens=0)) == []
    assert model.backend.decoders == []


def test_an_empty_prompt_starts_from_the_end_of_text_token():
    model = scripted(undecided)
    result, _ = generate(model, ["", []], max_tokens=1)
    assert model.backend.decoders[0].rows == [(END,), (END,)]
    assert (result.prompt, result.prompt_tokens, len(result.tokens)) == ("", 0, 1)


def test_the_prompt_is_read_once_and_then_one_token_a_step():
    model = scripted(undecided)
    result = generate(model, PROMPT, max_tokens=5)
    (decoder,) = model.backend.decoders
    assert decoder.rows == [(*gpt2().encode(PROMPT), *result.tokens[:-1])]


def test_a_seed_repeats_and_a_missing_one_is_told():
    model = scripted(undecided)
    first = generate(model, PROMPT, max_tokens=8)
    second = generate(model, PROMPT, max_tokens=8)
    again = generate(model, PROMPT, max_tokens=8, seed=first.seed)
    assert first.seed != second.seed
    assert first.tokens != second.tokens
    assert first.tokens == again.tokens


def test_rows_of_a_batch_are_what_they_are_alone():
    """With prompts of different lengths, and neighbours that end earlier."""
    model = scripted(undecided)
    prompts = ["x", PROMPT, "", PROMPT, "One two three four five six seven"]
    batch = generate(model, prompts, max_tokens=6, seed=11)
    alone = [generate(model, p, max_tokens=6, seed=11 + r) for r, p in enumerate(prompts)]
    for together, single in zip(batch, alone, strict=True):
        assert dataclasses.replace(together, tokens_per_s=0.0) == dataclasses.replace(
            single, tokens_per_s=0.0
        )
    assert batch[1].tokens != batch[3].tokens  # one prompt twice gives two texts

    stops = saying(" a b c d", 1)
    early, late = generate(stops, ["x", "y z"], max_tokens=4, temperature=0)
    assert (early.text, late.text) == (" a b c d", " b c d")
    assert (early.finish_reason, late.finish_reason) == ("length", "end")
    assert generate(model, []) == []


def test_token_prompts_are_text_prompts():
    model = scripted(undecided)
    text = generate(model, [PROMPT, "x"], max_tokens=3, seed=1)
    ids = generate(model, [gpt2().encode(PROMPT), gpt2().encode("x")], max_tokens=3, seed=1)
    assert [r.tokens for r in text] == [r.tokens for r in ids]
    assert [r.prompt for r in ids] == [PROMPT, "x"]
    single = generate(model, np.array(gpt2().encode(PROMPT)), max_tokens=3, seed=1)
    assert single.tokens == text[0].tokens
    with pytest.raises(ConfigError, match=r"token .*0..50256, got 50257"):
        generate(model, [1, 50257])


def test_every_greedy_token_is_the_arg_max_of_the_logits():
    result = generate(scripted(undecided), PROMPT, max_tokens=10, temperature=0, top_k=5, top_p=0.5)
    seen = tuple(gpt2().encode(PROMPT))
    for token in result.tokens:
        assert token == undecided(seen).astype(np.float32).argmax()
        seen += (token,)


def test_each_token_is_drawn_from_the_distribution_after_prompt_and_output():
    settings = SamplingConfig(repetition_penalty=2.0, repetition_window=0, top_k=3, top_p=1.0)
    result = generate(scripted(undecided), PROMPT, settings, max_tokens=10)
    seen = gpt2().encode(PROMPT)
    for token in result.tokens:
        ids, _ = distribution(undecided(tuple(seen)).astype(np.float32), settings, seen)
        assert token in ids
        seen.append(token)


def test_the_start_token_is_not_text_that_could_be_repeated():
    result = generate(saying("", 1), "", max_tokens=3, repetition_penalty=1e6)
    assert result.tokens == (END,)


def test_log_probabilities_are_the_models_own():
    result = generate(scripted(undecided), PROMPT, PAPER_SAMPLING, max_tokens=3, logprobs=True)
    logits = undecided(tuple(gpt2().encode(PROMPT)))
    expected = logits[result.tokens[0]] - np.log(np.exp(logits).sum())
    assert result.logprobs[0] == pytest.approx(expected, rel=1e-5)
    assert len(result.logprobs) == 3
    assert generate(scripted(undecided), PROMPT, max_tokens=1).logprobs is None


def test_rows_of_a_padded_vocabulary_are_never_drawn():
    config = PAMConfig(dim=4, num_layers=1, num_heads=1, head_dim=4, vocab_size=50304)
    padded = scripted(lambda seen: np.append(undecided(seen), np.full(47, 99.0)))
    model = LanguageModel(config, gpt2(), padded.backend, padded.model)
    assert generate(model, PROMPT, max_tokens=5).tokens


def test_a_vocabulary_below_the_tokenizers_is_an_error():
    config = PAMConfig(dim=4, num_layers=1, num_heads=1, head_dim=4, vocab_size=50256)
    with pytest.raises(ConfigError, match=r"vocab_size must be at least 50257.*got 50256"):
        LanguageModel(config, gpt2(), None, None)


def test_a_damaged_model_is_an_error_not_a_text():
    damaged = scripted(lambda _: np.full(gpt2().vocab_size, np.nan))
    for temperature in (0, 1.0):
        with pytest.raises(MlxPamError, match="logits must be finite"):
            generate(damaged, PROMPT, temperature=temperature)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_tokens": -1}, "max_tokens must be a whole number >= 0, got -1"),
        ({"stop": ["a", ""]}, "stop must be a text that is not empty, got ''"),
        ({"seed": -3}, "seed must be a whole number >= 0, got -3"),
        ({"temperature": "hot"}, "temperature must be a number >= 0"),
        ({"top_q": 1}, "has no setting 'top_q'"),
    ],
)
def test_wrong_settings_are_errors_before_any_token(settings, text):
    for function in (generate, stream):
        with pytest.raises(ConfigError, match=text):
            function(scripted(undecided), PROMPT, **settings)


def test_settings_given_by_name_stand_over_the_configuration():
    config = GenerationConfig(max_tokens=3, seed=5)
    model = scripted(undecided)
    assert generate(model, PROMPT, config, max_tokens=2).seed == 5
    assert len(generate(model, PROMPT, config, max_tokens=2).tokens) == 2


def test_the_package_has_the_functions_of_the_same_names():
    assert mlx_pam.generate is generate
    assert mlx_pam.stream is stream


def test_the_newest_run_is_the_one_written_last(tmp_path):
    with pytest.raises(CheckpointError, match="mlx_pam train"):
        newest_run(tmp_path / "runs")
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="mlx_pam train"):
        newest_run(tmp_path / "runs")
    config = PAMConfig(dim=2, num_layers=1, num_heads=1, head_dim=2, vocab_size=3)
    from mlx_pam.parameters import initial_weights

    for name in ("a/step-00000009", "b/step-00000001", "b/step-00000002"):
        checkpoint.save(tmp_path / "runs" / name, config, initial_weights(config, 0))
    assert newest_run(tmp_path / "runs") == tmp_path / "runs" / "b"


@pytest.mark.parametrize(
    "prompt", [None, 5, b"bytes", [1.5], [True], [None], ["a", None], [[1], 2]]
)
def test_a_prompt_of_another_type_is_an_error_by_name(prompt):
    with pytest.raises(ConfigError, match=r"prompt must be a text.*, got"):
        generate(scripted(undecided), prompt, max_tokens=1)


def test_no_stop_texts_are_none_and_others_are_texts():
    model = scripted(undecided)
    for none in (None, (), []):
        assert len(generate(model, "Once", stop=none, max_tokens=2, seed=1).tokens) == 2
    for wrong in (5, 0, False):
        with pytest.raises(
            ConfigError, match=f"stop must be a text or a list of texts, got {wrong}"
        ):
            generate(model, "Once", stop=wrong)
    with pytest.raises(ConfigError, match="prompt must be a text or token ids"):
        stream(model, b"Once")
