"""PyTorch models by family: adding one is a file and a line."""

from __future__ import annotations

from mlx_pam.config import ModelConfig
from mlx_pam.torch.models.memory_lm import MemoryLM
from mlx_pam.torch.models.transformer_lm import TransformerLM

FAMILIES = {"pam": MemoryLM, "sam": MemoryLM, "transformer": TransformerLM}

Model = MemoryLM | TransformerLM
"""What a runtime works with: `hidden`, `phases`, `embedding.head`, `layers`, `config`."""


def build(config: ModelConfig) -> Model:
    """A model of the configuration's family, its weights not yet drawn."""
    return FAMILIES[config.model_type](config)
