"""Ablations of PAM and SAM, and what goes beyond the paper, by name; see docs/variants.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlx_pam.config.model import MemoryConfig, ModelConfig
from mlx_pam.config.rules import require, require_choice
from mlx_pam.errors import ConfigError


@dataclass(frozen=True)
class Change:
    """Values of fields of `PAMConfig`, most of them `SAMConfig`'s too, and what they do."""

    fields: Mapping[str, Any]
    help: str


VARIANTS: dict[str, Change] = {
    "sequential": Change(
        {"order": "sequential", "rotary": False},
        "all gated units first, then all memories, without rotary positions",
    ),
    "no-rotary": Change({"rotary": False}, "queries and keys do not turn with their position"),
    "no-gate": Change({"protect": "none"}, "no protect gate: p = 0"),
    "channel-gate": Change({"protect": "channel"}, "a protect gate for each channel of a head"),
    "fixed-decay": Change(
        {"fixed_decay": 0.982},
        "e^-dt is 0.982 at every token, where the learned one starts; the gate stays",
    ),
    "phase-qk": Change({"qk_norm": "phase"}, "queries and keys keep their phases alone (pam)"),
    "hybrid": Change(
        {"attention_every": 4},
        "softmax attention to the last 256 tokens as well, in every fourth block",
    ),
    "recall": Change(
        {"conv_width": 2, "qk_norm": "head", "query_scale": 4.0, "alpha_pam_init": 1.0},
        "a convolution over two tokens, queries and keys of length 1, residual scale 1",
    ),
    "smooth-phase": Change(
        {"phase_eps": 0.11}, "the gate's phase in the gated unit is smooth at 0 (pam)"
    ),
}
VariantName = Literal[tuple(VARIANTS)]


def variant(config: ModelConfig, name: VariantName) -> MemoryConfig:
    """The configuration, changed as the variant has it; `ConfigError` where it cannot be."""
    require_choice("variant", name, tuple(VARIANTS))
    rule = f"absent with model {config.model_type}, which has no memory"
    require(isinstance(config, MemoryConfig), "variant", rule, name)
    fields = VARIANTS[name].fields
    for field in fields:
        if not hasattr(config, field):
            raise ConfigError(
                f"variant cannot be {name} here: model {config.model_type} has no {field}"
            )
    try:
        return dataclasses.replace(config, **fields)
    except ConfigError as error:
        raise ConfigError(f"variant cannot be {name} here: {error}") from None
