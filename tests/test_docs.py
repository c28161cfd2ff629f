"""The documentation's links lead somewhere, its pictures are there and small, its figures true."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_pam.benchmarks import chips, cost_model, cost_tables
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


def tables(page: str, first: str) -> list[list[str]]:
    """Cells of the table whose head begins with this word."""
    text = (DOCS / page).read_text("utf-8")
    body = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_what_the_cost_model_is_said_to_predict_it_predicts() -> None:
    rates = cost_model.published(chips.BY_WORD["m4-max"])
    for time, *cells in tables("cost_model.md", "T"):
        assert cells == [
            cost_tables.call(form, "100m", "float32", 8192 // int(time), int(time), both, rates)
            for both in (False, True)
            for form in cost_tables.FORMS
        ]
    pam, transformer = (PRESETS[family]["100m"] for family in ("pam", "transformer"))
    for context, *cells in tables("cost_model.md", "context"):
        assert cells == [
            cost_tables.milliseconds(cost_model.decode(config, int(context), kernels), rates)
            for config, kernels in (
                (pam, cost_model.decode_kernels(pam)),
                (transformer, 421),
            )
        ]


@pytest.mark.slow
def test_every_picture_can_be_drawn_anew(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, DOCS / "pictures.py", "--out", tmp_path], check=True)
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {picture.name for picture in PICTURES}
