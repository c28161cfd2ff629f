"""A mixture is told from a path by one rule, and every path can be named in it."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlx_pam.config import Share, TrainConfig, shares
from mlx_pam.errors import ConfigError


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("sample", [("sample", 1)]),
        ("my/folder,other", [("my/folder,other", 1)]),
        ("a*b,c", [("a*b,c", 1)]),
        ("sample*0.3,my/folder*0.7", [("sample", 3), ("my/folder", 7)]),
        ("a*2,b*6", [("a", 1), ("b", 3)]),
        ("a*.5,b*1.", [("a", 1), ("b", 2)]),
        ("a*0.1", [("a", 1)]),
        ("one,two*1,three*2", [("one,two", 1), ("three", 2)]),
        ("a*2*1", [("a*2", 1)]),
        ("a*2,,b*1", [("a*2,b", 1)]),
        ("a*2,,,b*1,c*1", [("a*2,,b", 1), ("c", 1)]),
        ("hf:o/n:c*1,x.jsonl:body*1", [("hf:o/n:c", 1), ("x.jsonl:body", 1)]),
        ("a*1,b", [("a*1,b", 1)]),
        ("a*1,", [("a*1,", 1)]),
    ],
)
def test_names_and_weights(data: str, found: list[tuple[str, int]]) -> None:
    assert shares(data) == [Share(*each) for each in found]


NAMES = st.text(st.sampled_from("ab*,.12/ é\n"), min_size=1, max_size=12)


@given(st.lists(st.tuples(NAMES, st.integers(1, 9999)), min_size=1, max_size=4))
def test_every_path_can_be_written(parts: list[tuple[str, int]]) -> None:
    names = [name if name[0] != "," else f"./{name}" for name, _ in parts]
    assume(len(set(names)) == len(names))
    doubled = [re.sub(r"(\*(?:\d+\.?\d*|\.\d+),)", r"\1,", name) for name in names]
    weights = [weight for _, weight in parts]
    written = ",".join(f"{n}*{w / 1000:.3f}" for n, w in zip(doubled, weights, strict=True))
    found = shares(written)
    assert [share.name for share in found] == names
    for share, weight in zip(found, weights, strict=True):
        assert Fraction(share.weight, sum(s.weight for s in found)) == Fraction(
            weight, sum(weights)
        )
    assert math.gcd(*(share.weight for share in found)) == 1


@given(NAMES)
def test_what_does_not_end_in_a_weight_is_a_name(name: str) -> None:
    if not re.search(r"\*(?:\d+\.?\d*|\.\d+)\Z", name):
        assert shares(name) == [Share(name, 1)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a*0,b*1", "the weight of a in data must be a number > 0, got 0"),
        ("a*1,b*2,a*3", "data must be a mixture that names each corpus once, got 'a"),
    ],
)
def test_impossible_mixtures_are_refused(data: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        TrainConfig(data=data)
