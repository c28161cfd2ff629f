"""Every setting of a model: what a checkpoint's `config.json` records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mlx_pam.config.rules import (
    require,
    require_below,
    require_choice,
    require_count,
    require_range,
)
from mlx_pam.errors import ConfigError

FORMAT_VERSION = 1
GPT2_VOCABULARY = 50257
GPT2_END_OF_TEXT = 50256
LEAST_PHASE_EPS = 1e-12  # its square is far from float32's smallest number

Part = Literal["unit", "memory", "attention"]
"""What a block adds to the residual stream: a gated unit, a memory, windowed attention."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every family has: sizes, rotary positions and norms."""

    model_type: ClassVar[str]

    dim: int
    """D, the model width: complex channels in PAM, real ones elsewhere."""
    num_layers: int
    """L, blocks; each mixes channels in a gated unit and tokens in a memory or by attention."""
    num_heads: int
    """H, independent memories, or attention heads, per layer."""
    head_dim: int
    """d, the width of a head."""
    vocab_size: int = GPT2_VOCABULARY
    """V, tokens in the vocabulary."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-6
    """Added to the mean square inside the norms."""

    def __post_init__(self) -> None:
        for name in ("dim", "num_layers", "num_heads", "head_dim", "vocab_size"):
            require_count(name, getattr(self, name))
            require_below(31, **{name: getattr(self, name)})
        require_range("rotary_base", self.rotary_base, 1.0, open_least=True)
        require_range("norm_eps", self.norm_eps, 0.0)

    @property
    def memory_dim(self) -> int:
        """Width of all heads together, H * d."""
        return self.num_heads * self.head_dim

    def to_dict(self) -> dict[str, Any]:
        """The record that a checkpoint's `config.json` holds."""
        record = {"model_type": self.model_type, "format_version": FORMAT_VERSION}
        return record | dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(ModelConfig):
    """What PAM and SAM add: the gated unit, the protect gate and the residual scales (section II).

    A head's state is d x d.
    """

    planes: ClassVar[tuple[int, ...]]
    """The axis that a complex array has before its last one; none in real arithmetic."""

    expand: int = 3
    """E, hidden width of the gated unit in units of D."""
    protect: Literal["head", "channel", "none"] = "head"
    """Protect gate p: one per head (eq. 5); one per head and channel, with gamma their mean; or
    none, p = 0."""
    alpha_cgu_init: float = 1.0
    """Initial residual scale of the gated unit (eq. 2)."""
    alpha_pam_init: float = 0.1
    """Initial residual scale of the memory (eq. 3)."""
    reset_token: int | None = None
    """Token that makes every memory forget what came before it (gamma = 0 at it); None: no such."""
    order: Literal["interleaved", "sequential"] = "interleaved"
    """L blocks of a gated unit and a memory each, or L of units and then L of memories."""
    rotary: bool = True
    """Whether queries and keys turn with their position."""
    fixed_decay: float | None = None
    """e^-dt of every token and head, in (0, 1]; None: learned from the token (eq. 5)."""
    qk_norm: Literal["phase", "head"] | None = None
    """Queries and keys: each number at modulus 1 (pam), each head's vector at length 1, or free."""
    query_scale: float | None = None
    """Scale of the queries, > 0, learned per head from this value; None: d^(-1/2), fixed."""
    conv_width: int = 1
    """Tokens, 1 to 16, that a causal convolution mixes in each channel of q, k, v; 1: none."""
    attention_every: int | None = None
    """Every so manyth block, 1 to L, attends to a window of tokens as well; None: none does."""
    attention_window: int = 256
    """Tokens, >= 2, that such a block's softmax attention sees: each one and those before it."""
    alpha_attention_init: float = 0.1
    """Initial residual scale of the attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("expand", self.expand)
        if self.reset_token is not None:
            require_count("reset_token", self.reset_token, least=0)
            rule = f"below vocab_size, {self.vocab_size}"
            require(self.reset_token < self.vocab_size, "reset_token", rule, self.reset_token)
        require_choice("protect", self.protect, ("head", "channel", "none"))
        for name in ("alpha_cgu_init", "alpha_pam_init", "alpha_attention_init"):
            require_range(name, getattr(self, name), -math.inf, open_least=True)
        require_choice("order", self.order, ("interleaved", "sequential"))
        require(isinstance(self.rotary, bool), "rotary", "true or false", self.rotary)
        if self.fixed_decay is not None:
            require_range("fixed_decay", self.fixed_decay, 0.0, 1.0, open_least=True)
        require_choice("qk_norm", self.qk_norm, (None, "phase", "head"))
        if self.query_scale is not None:
            require_range("query_scale", self.query_scale, 0.0, open_least=True)
        require_count("conv_width", self.conv_width, most=16)
        if self.attention_every is not None:
            require_count("attention_every", self.attention_every, most=self.num_layers)
        require_count("attention_window", self.attention_window, least=2)
        require_below(31, expand=self.expand, attention_window=self.attention_window)

    @property
    def blocks(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each block, in the order of the network."""
        every = self.attention_every or self.num_layers + 1
        mixers = [
            ("memory", "attention") if i % every == 0 else ("memory",)
            for i in range(1, self.num_layers + 1)
        ]
        if self.order == "sequential":
            return (("unit",),) * self.num_layers + tuple(mixers)
        return tuple(("unit", *parts) for parts in mixers)

    @property
    def hidden_dim(self) -> int:
        """Width inside the gated unit, E * D."""
        return self.expand * self.dim


@dataclass(frozen=True, kw_only=True)
class PAMConfig(MemoryConfig):
    """Phase-Associative Memory: complex embedding, gated units, memories and head."""

    model_type: ClassVar[str] = "pam"
    planes: ClassVar[tuple[int, ...]] = (2,)

    phase_eps: float = 0.0
    """Gate's phase in the gated unit, u = g / sqrt(|g|^2 + phase_eps^2): 0 is the unit phase of
    eq. 1, whose slope is 1/|g|; otherwise at least 1e-12, and the slope is at most 1/phase_eps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("phase_eps", self.phase_eps, 0.0)
        representable = self.phase_eps == 0 or self.phase_eps >= LEAST_PHASE_EPS
        require(representable, "phase_eps", f"0 or at least {LEAST_PHASE_EPS:g}", self.phase_eps)


@dataclass(frozen=True, kw_only=True)
class SAMConfig(MemoryConfig):
    """The real-valued twin of PAM: the same network with real arithmetic."""

    model_type: ClassVar[str] = "sam"
    planes: ClassVar[tuple[int, ...]] = ()

    gated_unit: Literal["relu", "swiglu"] = "relu"
    """Gated unit: ReLU with a sigmoid gate (the paper's words) or SwiGLU (the published code)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("gated_unit", self.gated_unit, ("relu", "swiglu"))
        rule = "head or None with model sam: the phase of a real number is its sign"
        require(self.qk_norm != "phase", "qk_norm", rule, self.qk_norm)
        _require_pairs(self)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The baseline: pre-norm blocks of softmax attention and SwiGLU, a tied head, no biases."""

    model_type: ClassVar[str] = "transformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_pairs(self)

    @property
    def hidden_dim(self) -> int:
        """Width inside the SwiGLU: 8/3 D to the nearest multiple of 8, and 8 at least."""
        return 8 * max(1, round(self.dim / 3))


def _require_pairs(config: ModelConfig) -> None:
    even = config.head_dim % 2 == 0
    require(even, "head_dim", "even (real rotary turns pairs)", config.head_dim)


CONFIGS: dict[str, type[ModelConfig]] = {
    config.model_type: config for config in (PAMConfig, SAMConfig, TransformerConfig)
}


def model_config(record: Mapping[str, Any]) -> ModelConfig:
    """A model's configuration from its record; what is unknown raises `ConfigError`."""
    if not isinstance(record, Mapping):
        raise ConfigError(
            f"a model configuration must be a JSON object, got {type(record).__name__}"
        )
    settings = dict(record)
    version = settings.pop("format_version", None)
    if type(version) is int and version > FORMAT_VERSION:  # first: it may know other families
        raise ConfigError(
            f"format_version must be {FORMAT_VERSION}, got {version}: the checkpoint is of a newer "
            "version of mlx_pam; upgrade mlx_pam to read it"
        )
    family = settings.pop("model_type", None)
    require_choice("model_type", family, tuple(CONFIGS))
    require_choice("format_version", version, (FORMAT_VERSION,))
    return from_settings(CONFIGS[family], settings)


def from_settings(cls: type, settings: Mapping[str, Any]) -> Any:
    """A dataclass from a record of its fields; unknown and missing keys raise `ConfigError`."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(settings) - set(fields))
    if unknown:
        raise ConfigError(f"{cls.__name__} has no setting {', '.join(map(repr, unknown))}")
    missing = sorted(
        name
        for name, field in fields.items()
        if name not in settings
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    )
    if missing:
        raise ConfigError(f"{cls.__name__} needs {', '.join(map(repr, missing))}")
    return cls(**settings)
