"""Data sets of the Hugging Face hub, through `datasets`; where there is no network, soon told."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mlx_pam.data import wikitext
from mlx_pam.data.copies import Document
from mlx_pam.data.hub_file import brief
from mlx_pam.data.source import Source, Split
from mlx_pam.data.splits import NAMES, deal
from mlx_pam.data.table import ROWS, text_column
from mlx_pam.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

PATIENCE = 6.0
"""Seconds that the hub has for its first answer."""

T = TypeVar("T")

_DIGEST = re.compile("[0-9a-f]{40}")


class Unreachable(Exception):
    """The hub does not answer. The text says why."""


@dataclass(frozen=True)
class HubText:
    """The texts of a data set, or of one of its configurations."""

    name: str
    """The corpus, as the user calls it."""
    repository: str
    config: str | None
    revision: str | None
    """Of the repository, its whole digest where it is to be found offline; None is the newest."""
    otherwise: str
    """What to do without a network."""
    column: str | None = None
    """That holds the documents; None is the one that `table.text_column` finds."""
    train: str | None = None
    """The split to train on, as it is called there; None is the one with a usual name."""
    validation: str | None = None
    """Likewise, and None may be documents of train that are held out."""

    def source(self) -> Source:
        """Settles the commit, asking the hub unless it is given. Texts are fetched when opened."""
        commit = self.commit()
        return Source(
            name=self.name,
            description=self.describe(commit),
            identity=self.identify(commit) | ({} if self._has_splits() else {"copies": "left out"}),
            splits=lambda: self._open(commit),
            commit=commit,
        )

    def _has_splits(self) -> bool:
        """Whether it is known, before anything is fetched, that nothing has to be held out here."""
        return self.repository == wikitext.REPOSITORY

    def describe(self, commit: str) -> str:
        """The data set in words."""
        config = f", {self.config}" if self.config else ""
        return f"{self.repository}{config}, commit {commit[:8]}"

    def identify(self, commit: str) -> dict[str, str | None]:
        """All that its text depends on."""
        chosen = {"column": self.column, "split": self.train, "validation": self.validation}
        identity = {"repository": self.repository, "config": self.config, "commit": commit}
        return identity | {key: value for key, value in chosen.items() if value}

    def commit(self) -> str:
        """The digest of the commit to use."""
        if self.revision and _DIGEST.fullmatch(self.revision):
            return self.revision
        try:
            return self.ask_hub(self.revision)
        except Unreachable as error:
            kept = None if self.revision else _downloaded(self.repository)
            if kept is None:
                raise self.cannot_be_had(error) from error
            return kept.name

    def _open(self, commit: str) -> dict[str, Split]:
        try:
            self.ask_hub(commit)
            found = self._load(self.repository, commit)
        except Unreachable as error:
            kept = _downloaded(self.repository, commit)
            if kept is None:
                raise self.cannot_be_had(error) from error
            try:
                found = self._load(str(kept), None)
            except DataError:  # another configuration was downloaded, or not all of this one
                raise self.cannot_be_had(error) from error
        dealt = "validation" not in self.choose_splits(found)
        splits = self._splits(self._choose(found))
        return splits | {"train": dataclasses.replace(splits["train"], without_copies=dealt)}

    def _load(self, where: str, revision: str | None) -> DatasetDict:
        from datasets import load_dataset

        try:
            return load_dataset(where, self.config, revision=revision)
        except Exception as error:  # of the network, the format, the configuration
            raise DataError(f"{self.name} cannot be loaded: {brief(error)}") from error

    def ask_hub(self, revision: str | None = None) -> str:
        """The commit that a revision is; raises `Unreachable` when no answer comes in time."""
        if importlib.util.find_spec("datasets") is None:
            raise DataError(f"{self.name} needs the package datasets: pip install datasets")
        from huggingface_hub import HfApi
        from huggingface_hub.utils import HFValidationError, RepositoryNotFoundError

        try:
            info = _in_time(
                lambda: HfApi().dataset_info(self.repository, revision=revision, timeout=PATIENCE)
            )
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise DataError(
                f"{self.name} must name a public data set of the Hugging Face hub, or one that you "
                f"are logged in for: {brief(error)}"
            ) from error
        except Exception as error:  # whatever a network can do
            raise Unreachable(brief(error)) from error
        return info.sha

    def choose_splits(self, found: Mapping[str, T]) -> dict[str, T]:
        """Ours, by the names that they have there."""
        wanted = {"train": self.train, "validation": self.validation}
        names = {split: [wanted[split]] for split in wanted if wanted[split]}
        taken = [name for (name,) in names.values()]
        for split, usual in NAMES.items():
            names.setdefault(split, [name for name in usual if name not in taken])
        chosen = {}
        for split in NAMES:
            if present := [name for name in names[split] if name in found]:
                chosen[split] = found[present[0]]
            elif split == "train" or wanted.get(split):
                raise DataError(
                    f"{self.name} must have a split {names[split][0]}, got "
                    f"{', '.join(found) or 'none'}: name one, as in hf:OWNER/NAME?split=NAME or "
                    "?split=NAME&validation=NAME"
                )
        return chosen

    def _choose(self, found: DatasetDict) -> dict[str, Dataset]:
        chosen = self.choose_splits(found)
        if "validation" not in chosen:
            rows = chosen["train"]
            chosen |= {split: rows.select(part) for split, part in deal(range(len(rows))).items()}
        return chosen

    def _splits(self, chosen: Mapping[str, Dataset]) -> dict[str, Split]:
        """The documents of each split, all in the column that train has them in."""
        column = self.column
        splits = {}
        for split, rows in chosen.items():
            column = text_column(f"{self.name}, {split}", rows.features.arrow_schema, column)
            rows = rows.select_columns([column])
            size = rows.data.nbytes * len(rows) // max(rows.data.num_rows, 1)
            documents = _Documents(self.name, rows, self.repository == wikitext.REPOSITORY)
            splits[split] = Split(documents, size, note=f"; text in column {column!r}")
        return splits

    def cannot_be_had(self, reason: Unreachable) -> DataError:
        return DataError(f"{self.name} cannot be fetched ({reason}): {self.otherwise}")


@dataclass(frozen=True)
class _Documents:
    """Each row a document, or lines that are gathered into articles."""

    name: str
    rows: Dataset
    lines: bool

    def __iter__(self) -> Iterator[Document]:
        texts = (text.replace("\r\n", "\n") for text in self._texts())
        return wikitext.articles(texts) if self.lines else ([text] for text in texts)

    def _texts(self) -> Iterator[str]:
        row = 0
        try:
            for batch in self.rows.iter(batch_size=ROWS):
                for column in batch.values():
                    yield from (text or "" for text in column)
                row += ROWS
        except Exception as error:  # of the format
            raise DataError(
                f"{self.name} cannot be read at rows {row} to {row + ROWS}: {brief(error)}"
            ) from error


def _downloaded(repository: str, commit: str | None = None) -> Path | None:
    """The folder of a commit of a data set in the hub's own cache: of the newest, unless named."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        kept = scan_cache_dir().repos
    except CacheNotFound:
        return None
    revisions = [
        revision
        for repo in kept
        if repo.repo_type == "dataset" and repo.repo_id == repository
        for revision in repo.revisions
        if commit in (None, revision.commit_hash)
    ]
    newest = max(revisions, key=lambda revision: revision.last_modified, default=None)
    return newest.snapshot_path if newest else None


def _in_time(call: Callable[[], T]) -> T:
    """What a call returns or raises, in time; looking up a name alone can take minutes."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(PATIENCE)
    except FutureTimeout:
        raise TimeoutError(f"no answer within {PATIENCE:g} s") from None
