"""`python small_sweep.py sweep ...` is `mlx_pam sweep ...` over models that train at once.

With any other command it is `mlx_pam` with the same models: the runs of the sweep are begun so.
"""

from __future__ import annotations

import os
import sys

from small_run import TINY, TINY_TRANSFORMER

from mlx_pam import cli
from mlx_pam.config import PRESETS
from mlx_pam.training.sweep import children


def main() -> int:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    PRESETS["pam"]["300k"], PRESETS["transformer"]["300k"] = TINY, TINY_TRANSFORMER
    children.COMMAND = (sys.executable, __file__)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
