"""What every test shares: the oracle on the path, and property tests that repeat themselves."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # `import oracle`: test folders are not packages

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
