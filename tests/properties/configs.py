"""Small model configurations of every family, with any setting at any of its values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as some

from mlx_pam.config import ModelConfig, PAMConfig, SAMConfig, TransformerConfig

VOCABULARY = 13

sizes = {
    "dim": some.integers(1, 9),
    "num_layers": some.integers(1, 3),
    "num_heads": some.integers(1, 3),
    "vocab_size": some.just(VOCABULARY),
    "rotary_base": some.floats(1.5, 1e6),
    "norm_eps": some.sampled_from((1e-6, 1e-5, 1e-3)),
}
memory = {
    "expand": some.integers(1, 3),
    "protect": some.sampled_from(("head", "channel", "none")),
    "alpha_cgu_init": some.floats(-2, 2),
    "alpha_pam_init": some.floats(-2, 2),
    "reset_token": some.none() | some.integers(0, VOCABULARY - 1),
    "order": some.sampled_from(("interleaved", "sequential")),
    "rotary": some.booleans(),
    "fixed_decay": some.none() | some.floats(0.01, 1),
    "query_scale": some.none() | some.floats(0.1, 4),
    "conv_width": some.integers(1, 4),
    "attention_window": some.integers(2, 6),
}


@some.composite
def configs(draw: Any, vocab_size: int = VOCABULARY) -> ModelConfig:
    """Any family; heads of an even width where numbers are turned in pairs."""
    family = draw(some.sampled_from((PAMConfig, SAMConfig, TransformerConfig)))
    settings = {name: draw(values) for name, values in sizes.items()}
    settings["vocab_size"] = vocab_size
    width = draw(some.integers(1, 4))
    settings["head_dim"] = width if family is PAMConfig else 2 * width
    if family is not TransformerConfig:
        settings |= {name: draw(values) for name, values in memory.items()}
        every = some.none() | some.integers(1, settings["num_layers"])
        settings["attention_every"] = draw(every)
        norms = (None, "head", "phase") if family is PAMConfig else (None, "head")
        settings["qk_norm"] = draw(some.sampled_from(norms))
    if family is PAMConfig:
        settings["phase_eps"] = draw(some.sampled_from((0.0, 1e-4, 0.3)))
    if family is SAMConfig:
        settings["gated_unit"] = draw(some.sampled_from(("relu", "swiglu")))
    return family(**settings)
