"""Where the kernels of a test run: on the GPU of a Mac, elsewhere on the CPU in the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

DEVICE = pytest.param("device", marks=pytest.mark.metal)


@pytest.fixture(params=[DEVICE if mx.metal.is_available() else "emulated"])
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The one there is; a fault that the emulator finds in a kernel raises."""
    if request.param == "device":
        yield request.param
        return
    from metal import emulator

    emulator.require()
    with emulator.emulated():
        yield request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """How a matrix lies over the lanes is asked first: everything else rests on it."""
    items.sort(key=lambda item: item.path.stem != "test_layout")
