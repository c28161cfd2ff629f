"""Every setting of a model and of a run, stated once: its name, default, help and rule.

The command line, the records in checkpoints and the documentation come from these dataclasses.
"""

from mlx_pam.config.mixture import Share, shares
from mlx_pam.config.model import (
    CONFIGS,
    FORMAT_VERSION,
    GPT2_END_OF_TEXT,
    GPT2_VOCABULARY,
    MemoryConfig,
    ModelConfig,
    PAMConfig,
    Part,
    SAMConfig,
    TransformerConfig,
    from_settings,
    model_config,
)
from mlx_pam.config.presets import PRESETS, Family, Scale
from mlx_pam.config.recipe import RECIPES, Recipe, recipe_for
from mlx_pam.config.rules import require, require_choice, require_count, require_range
from mlx_pam.config.sweep import SweepConfig
from mlx_pam.config.tokenizer_file import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    TokenizerFile,
    read_tokenizer_file,
)
from mlx_pam.config.training import TrainConfig
from mlx_pam.config.variants import VARIANTS, Change, VariantName, variant
from mlx_pam.config.vocabulary import VOCABULARIES, Vocabulary

__all__ = [
    "CONFIGS",
    "FORMAT_VERSION",
    "GPT2_END_OF_TEXT",
    "GPT2_VOCABULARY",
    "PRESETS",
    "RECIPES",
    "TOKENIZER",
    "TOKENIZER_CONFIG",
    "VARIANTS",
    "VOCABULARIES",
    "Change",
    "Family",
    "MemoryConfig",
    "ModelConfig",
    "PAMConfig",
    "Part",
    "Recipe",
    "SAMConfig",
    "Scale",
    "Share",
    "SweepConfig",
    "TokenizerFile",
    "TrainConfig",
    "TransformerConfig",
    "VariantName",
    "Vocabulary",
    "from_settings",
    "model_config",
    "read_tokenizer_file",
    "recipe_for",
    "require",
    "require_choice",
    "require_count",
    "require_range",
    "shares",
    "variant",
]
