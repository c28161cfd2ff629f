"""Small models of every variant, in which all parts matter to the logits; imported by tests."""

from __future__ import annotations

import dataclasses

from mlx_pam.config import VARIANTS, MemoryConfig, PAMConfig, SAMConfig, variant

RESET = 40
SIZES = {"dim": 12, "num_layers": 4, "num_heads": 3, "head_dim": 8, "vocab_size": 50}
SIZES |= {"alpha_pam_init": 1.0, "alpha_attention_init": 1.0, "reset_token": RESET}

VARIED: dict[str, MemoryConfig] = {
    f"{family.model_type}, {name}": dataclasses.replace(
        variant(family(**SIZES), name), attention_window=5
    )
    for family in (PAMConfig, SAMConfig)
    for name in VARIANTS
    if family is PAMConfig or name not in ("phase-qk", "smooth-phase")  # pam alone has them
} | {
    "pam, much at once": PAMConfig(
        **SIZES,
        order="sequential",
        rotary=False,
        protect="none",
        fixed_decay=0.9,
        qk_norm="head",
        conv_width=4,
        attention_every=2,
        attention_window=3,
    ),
    "sam, much at once": SAMConfig(
        **SIZES | {"num_heads": 1},
        protect="channel",
        fixed_decay=1.0,
        query_scale=2.0,
        conv_width=3,
        attention_every=1,
        attention_window=2,
    ),
}
