"""The page of variants tells the sizes, counts, changes and defaults that the package has."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from mlx_pam.config import PRESETS, VARIANTS, MemoryConfig, ModelConfig, PAMConfig, variant
from mlx_pam.decoder_state import state_shapes
from mlx_pam.parameters import parameter_count, parameter_table

TEXT = (Path(__file__).parents[1] / "docs" / "variants.md").read_text("utf-8")


def rows(head: str) -> list[list[str]]:
    """Cells of the table that begins with these columns, without the marks of code."""
    body = TEXT[TEXT.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in body]


def sizes(c: ModelConfig) -> list[str]:
    return [str(c.dim), str(c.num_layers), f"{c.num_heads} × {c.head_dim}"]


def state(c: MemoryConfig) -> int:
    """Bytes of a text's state in float32."""
    return 4 * sum(math.prod(shape) for shape in state_shapes(c, 1, 1).values())


def test_the_pairs_are_those_of_the_presets() -> None:
    table = rows("scale | PAM: D")
    assert table == [
        [
            scale,
            *(
                cell
                for family in ("pam", "sam", "sam-matched")
                for cell in (*sizes(PRESETS[family][scale]), f"{state(PRESETS[family][scale]):,}")
            ),
        ]
        for scale in ("5m", "10m", "25m", "50m", "100m")
    ]


def test_the_small_scales_are_those_of_the_presets() -> None:
    expected = []
    for scale in ("300k", "1m", "3m"):
        for family, presets in PRESETS.items():
            config = presets[scale]
            inner = sum(p.size for p in parameter_table(config).values() if p.kind != "embedding")
            over_bytes = parameter_count(dataclasses.replace(config, vocab_size=257))
            counts = (inner, over_bytes, parameter_count(config))
            expected.append([scale, family, *sizes(config), *(f"{n:,}" for n in counts)])
    assert rows("scale | family") == expected


def test_the_variants_are_those_of_the_table() -> None:
    plain = PRESETS["pam"]["100m"]
    expected = []
    for name, change in VARIANTS.items():
        varied = variant(plain, name)
        fields = ", ".join(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
                           for key, value in change.fields.items())  # fmt: skip
        parameters = parameter_count(varied) - parameter_count(plain)
        bytes_ = state(varied) - state(plain)
        expected.append([name, fields, f"{parameters:+,}", f"{bytes_:+,}", change.help])
    assert rows("variant | fields") == expected


@pytest.mark.parametrize("row", rows("field | values"), ids=lambda row: row[0])
def test_a_field_has_the_default_that_is_told(row: list[str]) -> None:
    names, _, default = row
    defaults = {field.name: field.default for field in dataclasses.fields(PAMConfig)}
    for name in re.split(", ", names):
        assert repr(defaults[name]).replace("'", '"') == default
