"""Few examples of each property in the ordinary run, many with `--hypothesis-profile=thorough`."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile(
    "thorough", deadline=None, max_examples=2000, print_blob=True, derandomize=False
)
