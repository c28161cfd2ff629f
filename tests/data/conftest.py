"""A cache of tokens of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpora import GPT2, Load

from mlx_pam.data.corpus import load_corpus


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a corpus with a cache of its own."""
    return lambda name: load_corpus(str(name), GPT2, tmp_path / "cache")
