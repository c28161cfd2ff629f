"""The description of the checkpoint format describes the checkpoints that are written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mlx_pam.config import PRESETS, ModelConfig, PAMConfig, TransformerConfig
from mlx_pam.parameters import parameter_table

SIZES = {"dim": 7, "num_layers": 1, "num_heads": 3, "head_dim": 4, "vocab_size": 11}
TEXT = (Path(__file__).parents[1] / "weights" / "README.md").read_text("utf-8")


def tensors(table: str) -> dict[str, str]:
    """Name -> shape as a table has them; a name that begins with a dot goes on from the first."""
    found = {}
    rows = TEXT.split(f"| name | {table} | |\n")[1].split("\n\n")[0]
    for names, shapes in re.findall(r"^\| (`[a-z].*?`) \| (`\[.*?`) \|", rows, re.MULTILINE):
        names, shapes = re.findall(r"`(.*?)`", names), re.findall(r"`(.*?)`", shapes)
        for index, name in enumerate(names):
            if name.startswith("."):
                name = names[0].rsplit(".", name.count("."))[0] + name
            found[name] = shapes[min(index, len(shapes) - 1)]
    return found


def test_the_example_is_a_preset() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert json.loads(example) == PRESETS["pam"]["5m"].to_dict()


@pytest.mark.parametrize(
    ("table", "config"),
    [
        ("shape in PAM", PAMConfig(**SIZES)),
        ("shape in the transformer", TransformerConfig(**SIZES)),
    ],
)
def test_every_tensor_has_its_row(table: str, config: ModelConfig) -> None:
    sizes = {"D": 7, "H": 3, "d": 4, "V": 11, "E": 3, "F": config.hidden_dim}
    told = {name.format(i=0): eval(shape, sizes) for name, shape in tensors(table).items()}
    assert told == {name: list(p.shape) for name, p in parameter_table(config).items()}


def test_what_variants_have_as_well_has_its_row() -> None:
    plain = parameter_table(PAMConfig(**SIZES))
    varied = parameter_table(PAMConfig(**SIZES, conv_width=2, query_scale=4.0, attention_every=1))
    sizes = {"D": 7, "H": 3, "d": 4, "w": 2}
    rows = tensors("shape in a variant of PAM")
    told = {name.format(i=0): eval(shape, sizes) for name, shape in rows.items()}
    assert told == {n: list(p.shape) for n, p in varied.items() if n not in plain}
