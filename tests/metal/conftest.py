"""Where the kernels of a test run: on the GPU of a Mac, or on the CPU in the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

ON_DEVICE = pytest.param(
    "device",
    marks=[
        pytest.mark.metal,
        pytest.mark.skipif(not mx.metal.is_available(), reason="needs an Apple GPU"),
    ],
)


@pytest.fixture(params=["emulated", ON_DEVICE])
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each in turn; a fault that the emulator finds in a kernel raises."""
    if request.param == "device":
        yield request.param
        return
    emulator = pytest.importorskip("metal.emulator")
    emulator.require()
    with emulator.emulated():
        yield request.param
