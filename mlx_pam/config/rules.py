"""Rules for values: what breaks one is a `ConfigError` that says name, rule and value."""

from __future__ import annotations

import math

from mlx_pam.errors import ConfigError


def require(condition: bool, name: str, rule: str, value: object) -> None:
    """Raise a `ConfigError` that says name, rule and value unless the condition holds."""
    if not condition:
        raise ConfigError(f"{name} must be {rule}, got {value!r}")


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    require(value in choices, name, "one of " + ", ".join(str(c) for c in choices), value)


def require_count(name: str, value: object, least: int = 1, most: float = math.inf) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    rule = f"a whole number >= {least}"
    if most != math.inf:
        rule += f" and <= {most}"
    require(whole and least <= value <= most, name, rule, value)


def require_below(power: int, **values: int | None) -> None:
    """Numbers of things that are to be counted or held; None is none."""
    for name, value in values.items():
        require(value is None or value < 2**power, name, f"below 2^{power}", value)


def require_range(
    name: str,
    value: object,
    least: float,
    most: float = math.inf,
    *,
    open_least: bool = False,
    open_most: bool = False,
) -> None:
    inside = _is_number(value) and (least < value if open_least else least <= value)
    inside = inside and (value < most if open_most else value <= most)
    rule = f"a number {'>' if open_least else '>='} {least:g}"
    if math.isfinite(most):
        rule += f" and {'<' if open_most else '<='} {most:g}"
    require(inside, name, rule, value)


def _is_number(value: object) -> bool:
    """Whether it is a finite number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False
