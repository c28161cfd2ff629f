"""The documentation's links lead somewhere, its pictures are there and small, its figures true."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_pam.config import PRESETS
from mlx_pam.decoder_state import state_shapes

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
MOST_BYTES = 150_000


def links(page: Path) -> list[str]:
    """What a page refers to in this repository."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    return [link for link in found if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_every_picture_is_shown_and_small() -> None:
    shown = {(DOCS / link).resolve() for page in PAGES for link in links(page)}
    assert PICTURES
    assert [picture.name for picture in PICTURES if picture not in shown] == []
    assert [picture.name for picture in PICTURES if picture.stat().st_size > MOST_BYTES] == []


def kept(family: str, scale: str, tokens: int) -> int:
    """Bytes that decoding keeps of a text."""
    shapes = state_shapes(PRESETS[family][scale], 1, tokens).values()
    return 4 * sum(math.prod(shape) for shape in shapes)


def test_the_table_of_states_and_caches_is_of_the_models() -> None:
    rows = re.findall(r"^\| (\w+: .*?) \|(.*)\|$", (DOCS / "operator.md").read_text(), re.M)
    table = {name: [int(cell.replace(",", "")) for cell in cells.split("|")]
             for name, cells in rows}  # fmt: skip
    scales = ("5m", "100m")
    layers = [PRESETS["pam"][scale].num_layers for scale in scales]
    states = [kept("pam", scale, 0) for scale in scales]
    assert table == {
        "PAM: state of a layer, 8 H d²": [s // n for s, n in zip(states, layers, strict=True)],
        "PAM: state, all layers, at any length of text": states,
        **{
            f"transformer: {name}": [kept("transformer", scale, tokens) for scale in scales]
            for name, tokens in (
                ("keys and values of one token", 1),
                ("cache at 2,048 tokens", 2048),
                ("cache at 32,768 tokens", 32768),
            )
        },
    }


@pytest.mark.slow
def test_every_picture_can_be_drawn_anew(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, DOCS / "pictures.py", "--out", tmp_path], check=True)
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {picture.name for picture in PICTURES}
