"""PyTorch models by family: adding one is a file and a line."""

from __future__ import annotations

from mlx_pam.config import MemoryConfig
from mlx_pam.torch.models.memory_lm import MemoryLM

FAMILIES = {"pam": MemoryLM, "sam": MemoryLM}


def build(config: MemoryConfig) -> MemoryLM:
    """A model of the configuration's family, its weights not yet drawn."""
    return FAMILIES[config.model_type](config)
