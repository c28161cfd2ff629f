"""Where a text stands: all that is needed to go on with it, in another process or backend too."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_pam import durable
from mlx_pam.decoder_state import state_shapes
from mlx_pam.errors import CheckpointError
from mlx_pam.language_model import LanguageModel
from mlx_pam.paths import expand_home

FORMAT = "mlx_pam text state 1"
RECENT = 1024
"""Tokens that a state keeps, for the repetition penalty."""


@dataclass(frozen=True, eq=False)
class TextState:
    """What a decoder remembers of one text, and what the next token is drawn from.

    With a memory it has one size, whatever the length of the text. `generate` and `stream` go on
    from it as if they had never stopped.
    """

    model: LanguageModel
    memories: dict[str, np.ndarray]
    """The decoder's: a memory or cache for each layer, batch of one, and `positions` [1]."""
    logits: np.ndarray
    """After the last token, [V]."""
    recent: tuple[int, ...]
    """The last tokens of the text, `RECENT` of them at most."""
    generator: np.random.Generator
    """Of the draws; greedy ones need none."""
    seed: int
    """That it began with."""

    @property
    def tokens(self) -> int:
        """Tokens read so far."""
        return int(self.memories["positions"][0])

    def require_model(self, model: LanguageModel) -> None:
        """Raise a `CheckpointError` unless this is a state of that model."""
        if model is not self.model and fingerprint(model) != fingerprint(self.model):
            raise CheckpointError(
                "the state is of another model: give the one that it was made with"
            )

    def save(self, path: Path | str) -> Path:
        """Write a file that `load_state` reads, whole or not at all; raises `CheckpointError`."""
        path = expand_home(path)
        arrays = self.memories | {
            "logits": self.logits.astype(np.float32),
            "recent": np.array(self.recent + (-1,) * (RECENT - len(self.recent)), np.int32),
            "generator": _packed(self.generator),
        }
        metadata = {  # of one length, so that the file is of one size
            "format": FORMAT,
            "model": fingerprint(self.model),
            "tokens": f"{self.tokens:016d}",
            "seed": f"{self.seed:040d}",
        }
        try:
            durable.replace(path, lambda file: durable.write_arrays(file, arrays, metadata))
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"cannot write state {path}: {reason}") from error
        return path


def load_state(model: LanguageModel, path: Path | str) -> TextState:
    """Read what `TextState.save` wrote of a text of this model, in whatever backend.

    Raises `CheckpointError` if the file is damaged, or of another model.
    """
    path = expand_home(path)
    metadata = durable.read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a saved state: it must be {FORMAT!r}, got {metadata.get('format')!r}"
        )
    if metadata.get("model") != fingerprint(model):
        raise CheckpointError(
            f"{path} is a state of another model: give the checkpoint that it was made with"
        )
    try:
        tokens, seed = int(metadata["tokens"]), int(metadata["seed"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: it has no number of tokens or seed") from error
    memories = {n: ("F32", shape) for n, shape in state_shapes(model.config, 1, tokens).items()}
    memories["positions"] = ("I64", (1,))
    others = {
        "logits": ("F32", (model.config.vocab_size,)),
        "recent": ("I32", (RECENT,)),
        "generator": ("U64", (6,)),
    }
    arrays = durable.read_arrays(path, memories | others)
    if arrays["positions"][0] != tokens or tokens < 0:
        raise CheckpointError(f"{path} is damaged: it must be of {tokens} tokens throughout")
    if arrays["recent"].max() >= model.tokenizer.vocab_size:
        raise CheckpointError(f"{path} is damaged: it holds tokens that the vocabulary lacks")
    if (arrays["generator"][4:] > np.array([1, 2**32 - 1], np.uint64)).any():
        raise CheckpointError(f"{path} is damaged: its random generator is none of NumPy's")
    return TextState(
        model=model,
        memories={name: arrays[name] for name in memories},
        logits=arrays["logits"],
        recent=tuple(int(token) for token in arrays["recent"] if token >= 0),
        generator=_unpacked(arrays["generator"]),
        seed=seed,
    )


def fingerprint(model: LanguageModel) -> str:
    """A hex digest of configuration, tokenizer and weights, the same in every backend.

    Settings at their defaults are left out: one that a later version adds changes no digest.
    """
    config = model.config
    fields = [f for f in dataclasses.fields(config) if getattr(config, f.name) != f.default]
    own = {f.name: getattr(config, f.name) for f in fields}
    settings = [config.model_type, own, model.tokenizer.fingerprint]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, weight in sorted(model.backend.weights(model.model).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weight).data)
    return digest.hexdigest()


def _packed(generator: np.random.Generator) -> np.ndarray:
    """PCG64 as six numbers of 64 bits."""
    found = generator.bit_generator.state
    words = [word for name in ("state", "inc") for word in divmod(found["state"][name], 1 << 64)]
    return np.array([*words, found["has_uint32"], found["uinteger"]], np.uint64)


def _unpacked(words: Sequence[int]) -> np.random.Generator:
    state, state_low, inc, inc_low, has_uint32, uinteger = (int(word) for word in words)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": (state << 64) + state_low, "inc": (inc << 64) + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
