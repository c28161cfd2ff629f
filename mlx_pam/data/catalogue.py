"""Which text the name of a corpus means.

`sample`, `wikitext-103`, `wikitext-2`, `hf:OWNER/NAME[@COMMIT][:CONFIG]`, or the path of a file or
a folder, perhaps with `:HOW` behind it, which says where its documents are (`documents.reader`).
`?column=NAME` may follow, and for a data set of the hub `split=NAME` and `validation=NAME`, joined
by `&`. What is there under the whole name is that path.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from mlx_pam.config import shares
from mlx_pam.data import wikitext
from mlx_pam.data.files import readable
from mlx_pam.data.hub import HubText
from mlx_pam.data.hub_files import hub_files
from mlx_pam.data.source import Source, Split, local, sample
from mlx_pam.data.streamed import Files, local_files
from mlx_pam.errors import DataError
from mlx_pam.paths import expand_home

NAMES = ("sample", *wikitext.CONFIGS)

_HUB_NAME = re.compile(r"hf:([^/:@\s?]+/[^/:@\s?]+)(?:@([^:\s?]+))?(?::([^\s?]+))?(\?.*)?")
_CHOICES = re.compile(r"\?(?=\w+=)")


def find(name: str, cache: Path) -> Source:
    """The text of a corpus, to be tokenised whole. Raises `DataError` if it is not there."""
    if name == "sample":
        return sample()
    if hub := _hub_text(name, cache):
        placed = _by_hand(name, cache)
        if not placed.is_dir():
            return hub.source()
        source = dataclasses.replace(local(placed, column=hub.column), name=hub.name)
        return _by_article(source) if hub.repository == wikitext.REPOSITORY else source
    return local(*_path(name))


def find_files(name: str, cache: Path) -> Files | None:
    """The files of a corpus, to be read as needed; None for those that are small and lie ready."""
    if name == "sample":
        return None
    if hub := _hub_text(name, cache):
        if hub.repository == wikitext.REPOSITORY:
            return None
        placed = _by_hand(name, cache)
        if not placed.is_dir():
            return hub_files(hub)
        return dataclasses.replace(local_files(placed, column=hub.column), name=hub.name)
    return local_files(*_path(name))


def _hub_text(name: str, cache: Path) -> HubText | None:
    chosen = _Choices()
    if config := wikitext.CONFIGS.get(name):
        named = (name, wikitext.REPOSITORY, config, wikitext.REVISION)
    elif match := _HUB_NAME.fullmatch(name):
        repository, revision, config, choices = match.groups()
        plain = f"hf:{repository}" + (f":{config}" if config else "") + (choices or "")
        named = (plain, repository, config, revision)
        chosen = _choices(name, choices or "", ("column", "split", "validation"))
    else:
        return None
    otherwise = (
        f"connect once, or place its text as train.txt and valid.txt in {_by_hand(name, cache)}, "
        "or take the data sample or a text file, which need no network"
    )
    return HubText(*named, otherwise, chosen.column, chosen.split, chosen.validation)


class _Choices(NamedTuple):
    """The query that follows a name after `?`."""

    column: str | None = None
    split: str | None = None
    validation: str | None = None


def _choices(name: str, text: str, known: tuple[str, ...]) -> _Choices:
    """Parse a query such as `?column=content&split=train_sft`."""
    found: dict[str, str] = {}
    for pair in filter(None, text.removeprefix("?").split("&")):
        key, _, value = pair.partition("=")
        if key not in known or key in found or not value:
            raise DataError(
                f"what follows ? in data must be {', '.join(f'{key}=NAME' for key in known)}, each "
                f"once and joined by &, got {pair!r} in {name!r}"
            )
        found[key] = unquote(value)
    return _Choices(**found)


def _by_hand(name: str, cache: Path) -> Path:
    """Where a user may place the text of a data set of the hub."""
    name = re.sub(r"\?.*|@[^:?]+", "", name.removeprefix("hf:"))
    return cache / "text" / re.sub(r"[/:]", "--", name)


def _by_article(source: Source) -> Source:
    """The same text, each article a document."""

    def splits() -> dict[str, Split]:
        return {
            split: Split(
                wikitext.articles(wikitext.lines(itertools.chain.from_iterable(part.documents))),
                part.size,
            )
            for split, part in source.splits().items()
        }

    return dataclasses.replace(
        source, identity={"articles": True, **source.identity}, splits=splits
    )


def _without_choices(name: str) -> Iterator[tuple[str, str]]:
    """A name cut before what may be the choices."""
    for match in _CHOICES.finditer(name):
        yield name[: match.start()], name[match.start() :]


def _path(name: str) -> tuple[Path, str | None, str | None]:
    """The path that a name is, what stands behind a colon, and the column that it names."""
    for text, choices in ((name, ""), *_without_choices(name)):
        for path, how in ((text, ""), text.rpartition(":")[::2]):
            found = expand_home(path)
            with readable(found):
                if path and found.exists():
                    return found, how or None, _choices(name, choices, ("column",)).column
    if len(shares(name)) > 1:
        raise DataError(f"data must name one corpus here, got the mixture {name!r}")
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f": do you mean {near[0]}?" if near else ""
    if re.search(r"\*[\d.]+,", name):
        hint = ": every corpus of a mixture has a weight, as in A*0.3,B*0.7"
    raise DataError(
        f"data must be {', '.join(NAMES)}, hf:OWNER/NAME[:CONFIG][?column=NAME], or the path of a "
        f"file or a folder, got {name!r}, which is not there{hint}"
    )
