"""The description of the checkpoint format describes the checkpoints that are written."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mlx_pam.config import PRESETS, PAMConfig
from mlx_pam.parameters import parameter_table

TEXT = (Path(__file__).parents[1] / "weights" / "README.md").read_text("utf-8")


def tensors() -> dict[str, str]:
    """Name -> shape as the table has them; a name that begins with a dot goes on from the first."""
    found = {}
    for names, shapes in re.findall(r"^\| (`[a-z].*?`) \| (`\[.*?`) \|", TEXT, re.MULTILINE):
        names, shapes = re.findall(r"`(.*?)`", names), re.findall(r"`(.*?)`", shapes)
        for index, name in enumerate(names):
            if name.startswith("."):
                name = names[0].rsplit(".", name.count("."))[0] + name
            found[name] = shapes[min(index, len(shapes) - 1)]
    return found


def test_the_example_is_a_preset() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert json.loads(example) == PRESETS["pam"]["5m"].to_dict()


def test_every_tensor_has_its_row() -> None:
    config = PAMConfig(dim=7, num_layers=1, num_heads=3, head_dim=5, vocab_size=11)
    sizes = {"D": 7, "H": 3, "d": 5, "V": 11, "E": 3}
    told = {name.format(i=0): eval(shape, sizes) for name, shape in tensors().items()}
    assert told == {name: list(p.shape) for name, p in parameter_table(config).items()}
