"""What a model must know of the tokenizer: how many tokens there are, and which ends a text."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_pam.config.model import GPT2_END_OF_TEXT, GPT2_VOCABULARY


@dataclass(frozen=True)
class Vocabulary:
    """The tokens 0 to size - 1."""

    size: int
    end_of_text: int
    """The token that stands between documents."""


VOCABULARIES = {
    "gpt2": Vocabulary(GPT2_VOCABULARY, GPT2_END_OF_TEXT),
    "bytes": Vocabulary(257, 256),  # not padded: 257 rows or 264 cost the same
}
"""Of the tokenizers that have a name."""
