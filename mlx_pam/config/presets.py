"""The sizes that have a name: `PRESETS[family][scale]`.

300k, 1m and 3m are named after their parameters without the embedding, which depends on the
vocabulary: for studies on a laptop's CPU. 5m to 100m are the paper's and named after all of them.
"""

from __future__ import annotations

from typing import Literal

from mlx_pam.config.model import ModelConfig, PAMConfig, SAMConfig, TransformerConfig

Scale = Literal["300k", "1m", "3m", "5m", "10m", "25m", "50m", "100m"]
Family = Literal["pam", "sam", "sam-matched", "transformer"]


def _preset(
    config: type[ModelConfig], dim: int, num_layers: int, num_heads: int, head_dim: int
) -> ModelConfig:
    return config(dim=dim, num_layers=num_layers, num_heads=num_heads, head_dim=head_dim)


PRESETS: dict[Family, dict[Scale, ModelConfig]] = {
    "pam": {  # from 5m on Table 1 of the paper
        "300k": _preset(PAMConfig, 40, 6, 4, 16),
        "1m": _preset(PAMConfig, 82, 6, 4, 16),
        "3m": _preset(PAMConfig, 128, 8, 4, 16),
        "5m": _preset(PAMConfig, 44, 12, 2, 16),
        "10m": _preset(PAMConfig, 80, 12, 4, 16),
        "25m": _preset(PAMConfig, 200, 6, 4, 16),
        "50m": _preset(PAMConfig, 292, 12, 4, 16),
        "100m": _preset(PAMConfig, 384, 16, 6, 64),
    },
    "sam": {  # what the paper's sweep ran beside it; below 5m wider and with more heads, as there
        "300k": _preset(SAMConfig, 51, 6, 8, 16),
        "1m": _preset(SAMConfig, 109, 6, 8, 16),
        "3m": _preset(SAMConfig, 173, 8, 8, 16),
        "5m": _preset(SAMConfig, 84, 11, 2, 8),
        "10m": _preset(SAMConfig, 140, 11, 8, 16),
        "25m": _preset(SAMConfig, 344, 6, 4, 32),
        "50m": _preset(SAMConfig, 496, 11, 2, 8),
        "100m": _preset(SAMConfig, 576, 16, 9, 64),
    },
    # PAM's layers and heads; d the even number whose square is nearest to PAM's state, 2 d^2; D for
    # PAM's parameters within 1 %: all of them at GPT-2's vocabulary, below 5m without the embedding
    "sam-matched": {
        "300k": _preset(SAMConfig, 57, 6, 4, 22),
        "1m": _preset(SAMConfig, 117, 6, 4, 22),
        "3m": _preset(SAMConfig, 182, 8, 4, 22),
        "5m": _preset(SAMConfig, 81, 12, 2, 22),
        "10m": _preset(SAMConfig, 142, 12, 4, 22),
        "25m": _preset(SAMConfig, 350, 6, 4, 22),
        "50m": _preset(SAMConfig, 470, 12, 4, 22),
        "100m": _preset(SAMConfig, 589, 16, 6, 90),
    },
    "transformer": {  # as near to PAM's parameters; heads of 64, of 32 where those were too few
        "300k": _preset(TransformerConfig, 72, 5, 2, 32),
        "1m": _preset(TransformerConfig, 116, 6, 4, 32),
        "3m": _preset(TransformerConfig, 172, 8, 6, 32),
        "5m": _preset(TransformerConfig, 80, 12, 3, 32),
        "10m": _preset(TransformerConfig, 144, 11, 4, 32),
        "25m": _preset(TransformerConfig, 312, 8, 5, 64),
        "50m": _preset(TransformerConfig, 440, 12, 7, 64),
        "100m": _preset(TransformerConfig, 576, 18, 9, 64),
    },
}
