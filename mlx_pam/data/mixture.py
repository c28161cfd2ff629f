"""The data of a run: one corpus, or several that take turns by their weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mlx_pam.cache import cache_folder
from mlx_pam.config import require, shares
from mlx_pam.data.batches import Batches, require_tokens
from mlx_pam.data.catalogue import find_files
from mlx_pam.data.corpus import Corpus, load_corpus
from mlx_pam.data.streamed import Streamed, Streaming, open_stream
from mlx_pam.data.tokenizer import Tokenizer

MOST_FILES = 1000
"""Files of a corpus that a checkpoint records one by one."""

DIGITS = 16
"""Characters of a file's digest in that record."""

MOST_SHOWN = 3


@dataclass(frozen=True)
class Part:
    """A corpus of a mixture."""

    label: str
    """What tells it from the others."""
    weight: int
    corpus: Corpus | Streamed


@dataclass(frozen=True)
class Mixture:
    """The corpora of a run; a run on one corpus is a mixture of one."""

    parts: tuple[Part, ...]
    streaming: Streaming | None = None

    @property
    def name(self) -> str:
        if len(self.parts) == 1:
            return self.parts[0].corpus.name
        return " + ".join(f"{part.weight} {part.corpus.name}" for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Hex digest over all that decides the tokens: texts, tokenizer, settings, weights."""
        if len(self.parts) == 1:
            return self.parts[0].corpus.fingerprint
        facts = [[part.weight, part.corpus.fingerprint] for part in self.parts]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each split, of all parts together."""
        counts: dict[str, int] = {}
        for part in self.parts:
            for split, count in part.corpus.tokens.items():
                counts[split] = counts.get(split, 0) + count
        return counts

    def share(self, part: Part) -> float:
        """The share of the windows that a part gives."""
        return part.weight / sum(part.weight for part in self.parts)

    def require(self, seq_len: int) -> None:
        """Raise a `DataError` unless every split that is stored or held out has a whole window."""
        for part in self.parts:
            splits = [split for split in ("train", "validation") if split in part.corpus.tokens]
            require_tokens(part.corpus, seq_len, splits)

    def batches(self, seq_len: int, batch_size: int, seed: int) -> Batches:
        """Training batches, without end."""
        windows = [
            part.corpus.windows(seq_len, seed, number) for number, part in enumerate(self.parts)
        ]
        return Batches(windows, [part.weight for part in self.parts], batch_size)

    def mean_loss(self, losses: Mapping[str, float]) -> float:
        """The parts' losses, by label, weighted by their shares."""
        return sum(self.share(part) * losses[part.label] for part in self.parts)

    def describe(self, batches: Batches, windows: int) -> list[str]:
        """Lines on the data of a run of so many windows."""
        told = [
            f"{part.corpus.description}; tokens: "
            + ", ".join(f"{split} {count:,}" for split, count in part.corpus.tokens.items())
            + (f", reused from {part.corpus.reused}" if part.corpus.reused else "")
            for part in self.parts
        ]
        if len(told) == 1:
            return told
        lines = [f"{len(told)} corpora take turns"]
        for part, text, epochs in zip(self.parts, told, batches.epochs(windows), strict=True):
            often = "" if epochs is None else f"; {epochs:.3g} epochs"
            lines.append(f"{100 * self.share(part):.4g}% {part.label}: {text}{often}")
        return lines

    def record(self) -> dict[str, Any]:
        """What a checkpoint holds of the data, for `agreement`."""
        parts = [[part.corpus.name, part.weight, part.corpus.fingerprint] for part in self.parts]
        commits = {part.label: part.corpus.commit for part in self.parts if part.corpus.commit}
        found = {
            "parts": parts if len(parts) > 1 else None,
            "commits": commits,
            "files": self._files(),
            "streaming": self.streaming and asdict(self.streaming),
        }
        told = {key: value for key, value in found.items() if value}
        return {"name": self.name, "fingerprint": self.fingerprint, **told}

    def agreement(self, saved: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """What must be as it was for a run to go on: name -> (then, now)."""
        now = self.record()
        pairs = {"data": (saved["name"], self.name)}
        streaming = [record.get("streaming") for record in (saved, now)]
        pairs["stream"] = tuple(map(bool, streaming))
        for name in asdict(self.streaming) if all(streaming) else ():
            pairs[f"stream_{name}"] = tuple(each[name] for each in streaming)
        for label, commit in saved.get("commits", {}).items():
            pairs[f"commit of {label}"] = (commit, now.get("commits", {}).get(label, commit))
        return pairs

    def changed(self, saved: Mapping[str, Any]) -> str | None:
        """Which text is not what it was, in words; None if all are as they were."""
        if saved["fingerprint"] == self.fingerprint:
            return None
        then = [each[-1] for each in saved.get("parts", ())] or [saved["fingerprint"]]
        others = [
            part
            for part, fingerprint in zip(self.parts, then, strict=False)
            if part.corpus.fingerprint != fingerprint
        ]
        before, now = saved.get("files", {}), self._files()
        told = [
            f"{part.label} ({_difference(before.get(part.label, {}), now.get(part.label, {}))})"
            for part in others
        ]
        return "; ".join(told) or self.name

    def _files(self) -> dict[str, dict[str, str]]:
        """The files of each part and the beginnings of their digests, unless there are too many."""
        return {
            part.label: {file: digest[:DIGITS] for file, digest in part.corpus.files.items()}
            for part in self.parts
            if 0 < len(part.corpus.files) <= MOST_FILES
        }


def _difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """How the files of a corpus differ, in words."""
    if not then or not now:
        return "which of its files is not recorded"
    kinds = {
        "changed": [file for file in now if then.get(file, now[file]) != now[file]],
        "new": [file for file in now if file not in then],
        "missing": [file for file in then if file not in now],
    }
    told = [
        f"{kind}: {', '.join(files[:MOST_SHOWN])}{', ...' if len(files) > MOST_SHOWN else ''}"
        for kind, files in kinds.items()
        if files
    ]
    return ", ".join(told) or "the same files, which this version of mlx_pam reads in another way"


def load_mixture(data: str, tokenizer: Tokenizer, streaming: Streaming | None = None) -> Mixture:
    """The corpora that `TrainConfig.data` names, see `mlx_pam.config.shares`.

    With `streaming` those that can be large are read as they are needed, and not stored.
    """
    found = shares(data)
    files = [streaming and find_files(share.name, cache_folder()) for share in found]
    if streaming:
        require(any(files), "stream", f"off with data {data}, which is small and stored", True)
    corpora = [
        open_stream(of, tokenizer, streaming) if of else load_corpus(share.name, tokenizer)
        for share, of in zip(found, files, strict=True)
    ]
    names = [corpus.name for corpus in corpora]
    return Mixture(
        tuple(
            Part(corpus.name if names.count(corpus.name) == 1 else share.name, share.weight, corpus)
            for share, corpus in zip(found, corpora, strict=True)
        ),
        streaming,
    )
