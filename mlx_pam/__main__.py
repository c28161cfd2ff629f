"""`python -m mlx_pam` is the command `mlx_pam`."""

from __future__ import annotations

import sys

from mlx_pam.cli import main

if __name__ == "__main__":
    sys.exit(main())
