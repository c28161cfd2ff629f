"""Which text the name of a corpus means.

`sample`, `wikitext-103`, `wikitext-2`, `hf:OWNER/NAME[@COMMIT][:CONFIG]`, or the path of a file or
a folder, perhaps with `:HOW` behind it, which says where its documents are (`documents.reader`).
What is there under the whole name is that path.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from pathlib import Path

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

_HUB_NAME = re.compile(r"hf:([^/:@\s]+/[^/:@\s]+)(?:@([^:\s]+))?(?::(\S+))?")


def find(name: str, cache: Path) -> Source:
    """The text of a corpus, to be tokenised whole. Raises `DataError` if it is not there."""
    if name == "sample":
        return sample()
    if hub := _hub_text(name, cache):
        placed = _by_hand(name, cache)
        if not placed.is_dir():
            return hub.source()
        source = dataclasses.replace(local(placed), name=hub.name)
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
        return dataclasses.replace(local_files(placed), name=hub.name)
    return local_files(*_path(name))


def _hub_text(name: str, cache: Path) -> HubText | None:
    if config := wikitext.CONFIGS.get(name):
        named = (name, wikitext.REPOSITORY, config, wikitext.REVISION)
    elif match := _HUB_NAME.fullmatch(name):
        repository, revision, config = match.groups()
        plain = f"hf:{repository}" + (f":{config}" if config else "")
        named = (plain, repository, config, revision)
    else:
        return None
    otherwise = (
        f"connect once, or place its text as train.txt and valid.txt in {_by_hand(name, cache)}, "
        "or take the data sample or a text file, which need no network"
    )
    return HubText(*named, otherwise)


def _by_hand(name: str, cache: Path) -> Path:
    """Where a user may place the text of a data set of the hub."""
    name = re.sub(r"@[^:]+", "", name.removeprefix("hf:"))
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


def _path(name: str) -> tuple[Path, str | None]:
    """The path that a name is, and what stands behind a colon."""
    for text, how in ((name, ""), name.rpartition(":")[::2]):
        path = expand_home(text)
        with readable(path):
            if text and path.exists():
                return path, how or None
    if len(shares(name)) > 1:
        raise DataError(f"data must name one corpus here, got the mixture {name!r}")
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f": do you mean {near[0]}?" if near else ""
    if re.search(r"\*[\d.]+,", name):
        hint = ": every corpus of a mixture has a weight, as in A*0.3,B*0.7"
    raise DataError(
        f"data must be {', '.join(NAMES)}, hf:OWNER/NAME[:CONFIG], or the path of a file or a "
        f"folder, got {name!r}, which is not there{hint}"
    )
