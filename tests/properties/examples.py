"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

ORDINARY = 100  # hypothesis's own, which the ordinary profile leaves as it is


def examples(few: int) -> settings:
    """So many in the ordinary run, and as many times more as another profile has it."""
    count = max(1, few * settings.default.max_examples // ORDINARY)
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, suppress_health_check=slow)
