"""Tokenizers by name, and what all of them have in common."""

from __future__ import annotations

import pytest

from mlx_pam.config import VOCABULARIES
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.data.tokenizer import get_tokenizer
from mlx_pam.errors import ConfigError


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_tokenizer_is_what_the_configuration_says_of_it(name: str) -> None:
    tokenizer, vocabulary = get_tokenizer(name), VOCABULARIES[name]
    assert tokenizer.name == name
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (
        vocabulary.size,
        vocabulary.end_of_text,
    )
    assert tokenizer.token_bytes(tokenizer.end_of_text) == b"<|endoftext|>"
    with pytest.raises(KeyError):
        tokenizer.token_bytes(tokenizer.vocab_size)


def test_fingerprints_differ_and_stay() -> None:
    assert len({get_tokenizer(name).fingerprint for name in VOCABULARIES}) == len(VOCABULARIES)
    assert get_tokenizer("bytes").fingerprint == get_tokenizer("bytes").fingerprint
    assert gpt2().fingerprint.startswith("43755831")


def test_unknown_tokenizer_is_an_error() -> None:
    assert get_tokenizer("gpt2") is gpt2()
    told = r"gpt2, bytes, or a tokenizer.json .*, got 'gpt3' \(No such file"
    with pytest.raises(ConfigError, match=told):
        get_tokenizer("gpt3")
