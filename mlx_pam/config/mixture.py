"""`NAME*WEIGHT,NAME*WEIGHT`: the corpora of a run, and the share of the windows that each gives."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from mlx_pam.config.rules import require

_WEIGHT = r"\*(\d+(?:\.\d*)?|\.\d+)"
_SHARE = re.compile(rf"(.+?){_WEIGHT}(?:,(?!,|\Z)|\Z)", re.DOTALL)
_DOUBLED = re.compile(rf"({_WEIGHT},),")


@dataclass(frozen=True)
class Share:
    """A corpus and its weight: of so many windows as all weights add up to, it gives so many."""

    name: str
    weight: int


def shares(data: str) -> list[Share]:
    """The corpora that `data` names, with whole weights in lowest terms.

    What ends in a weight is a mixture, everything else the name of one corpus. A comma separates
    two corpora where it follows a weight; a comma of a name is doubled there (`a*2,,b*1` is the
    path `a*2,b`), and a path that ends like a weight is given one (`a*2*1` is the path `a*2`).
    Raises `ConfigError` on a weight of 0 and on a corpus that is named twice.
    """
    found: list[tuple[str, Fraction]] = []
    at = 0
    while at < len(data):
        share = _SHARE.match(data, at)
        if share is None:
            return [Share(data, 1)]
        found.append((_DOUBLED.sub(r"\1", share[1]), Fraction(share[2])))
        at = share.end()
    names = [name for name, _ in found]
    require(len(set(names)) == len(names), "data", "a mixture that names each corpus once", data)
    for name, weight in found:
        require(weight > 0, f"the weight of {name} in data", "a number > 0", float(weight))
    denominator = math.lcm(*(weight.denominator for _, weight in found))
    whole = [int(weight * denominator) for _, weight in found]
    return [
        Share(name, weight // math.gcd(*whole)) for name, weight in zip(names, whole, strict=True)
    ]
