"""`python small_command.py train ...` is `mlx_pam train ...` with a model that trains at once."""

from __future__ import annotations

import os
import sys

from small_run import TINY

from mlx_pam import cli
from mlx_pam.config import PRESETS


def main() -> int:
    """The command with `TINY` in place of the smallest preset, and without `torch.compile`."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    PRESETS["pam"]["5m"] = TINY
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
