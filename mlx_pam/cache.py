"""The folder that keeps what is made once per user: tokenised corpora, the bridge to a BLAS."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$MLX_PAM_CACHE`, or `mlx_pam` in the user's cache folder; not created here."""
    if own := os.environ.get("MLX_PAM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx_pam"
