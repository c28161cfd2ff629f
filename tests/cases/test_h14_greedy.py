"""H14: temperature 0 gives one text, always, and each of its tokens is the arg-max."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from new_process import Done, mlx_pam
from tiny_models import random_checkpoint

from mlx_pam import generate, load

PROMPT = "The state of the union"
TOKENS = 100
FILTERS = ["--top-k", "3", "--top-p", "0.2", "--min-p", "0.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("h14") / "model")


def in_a_new_process(folder: Path, *words: str) -> Done[str]:
    command = ["generate", "--checkpoint", folder, "--prompt", PROMPT, "--temperature", "0"]
    done = mlx_pam(*command, "--max-tokens", str(TOKENS), *words, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    return done


def test_the_text_is_the_same_in_one_process_and_in_new_ones(folder):
    model = load(folder)
    first, *others = [generate(model, PROMPT, temperature=0, max_tokens=TOKENS) for _ in range(3)]
    assert [other.tokens for other in others] == [first.tokens] * 2
    filtered = generate(
        model, PROMPT, temperature=0, max_tokens=TOKENS, top_k=3, top_p=0.2, min_p=0.5
    )
    assert filtered.tokens == first.tokens

    printed = in_a_new_process(folder)
    assert printed.stdout == PROMPT + first.text + "\n"
    assert printed.stderr.count("\n") == 1  # no warnings beside the line on seed and speed
    record = json.loads(in_a_new_process(folder, "--json", *FILTERS).stdout)
    assert record["tokens"] == list(first.tokens)
    assert len(first.tokens) == TOKENS


def test_every_token_is_the_arg_max_of_the_logits_after_all_before_it(folder):
    model = load(folder)
    result = generate(model, PROMPT, temperature=0, max_tokens=TOKENS)
    seen = model.tokenizer.encode(PROMPT)
    decoder = model.decoder()
    for token in result.tokens:
        logits = decoder.prefill([seen])[0]
        assert logits[token] >= logits.max() - 1e-5  # a rounding apart from the recurrent step's
        seen.append(token)
