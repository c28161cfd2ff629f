"""MLX models by family: adding one is a file and a line."""

from __future__ import annotations

import mlx.nn as nn

from mlx_pam.config import MemoryConfig
from mlx_pam.models.memory_lm import MemoryLM

FAMILIES: dict[str, type[nn.Module]] = {"pam": MemoryLM, "sam": MemoryLM}


def build(config: MemoryConfig) -> nn.Module:
    """A model of the configuration's family, its weights not yet drawn."""
    return FAMILIES[config.model_type](config)
