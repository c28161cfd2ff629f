"""Every planted fault is found by the layer that is there for it, and a correct kernel by none."""

from __future__ import annotations

import pytest
from metal import emulator
from metal.emulator import faults
from metal.emulator.build import SANITIZERS
from metal.emulator.launch import SCHEDULES
from metal.emulator.planted import FAULTS, KERNELS

emulator.require()
pytestmark = pytest.mark.kernels

every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_correct_kernel_passes_all_layers(name, schedule):
    with emulator.emulated(schedule=schedule):
        assert KERNELS[name].is_right(KERNELS[name].run())


@every_fault
def test_the_check_names_the_rule_that_is_broken(fault):
    assert faults.found_by_check(fault) == fault.check


@every_fault
def test_the_launch_names_what_went_wrong(fault):
    assert faults.found_by_launch(fault) == fault.launch


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.launch == "race"], ids=lambda fault: fault.name
)
def test_a_race_is_found_in_every_order_of_the_threads(fault, schedule):
    assert faults.found_by_launch(fault, schedule) in ("race", "uninitialised")


@every_fault
def test_no_fault_gets_through(fault):
    assert fault.check or fault.launch


def test_the_page_has_the_table():
    """Written by `python -m tests.metal.emulator.faults`."""
    page = (faults.ROOT / "docs" / "emulator.md").read_text("utf-8")
    rows = [faults.row(f.name, f.check, f.launch, f.address, f.thread) for f in FAULTS]
    assert "\n".join(rows) in page


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_sanitizers_bear_witness(sanitize):
    found = faults.found_by_sanitizer(sanitize)
    expected = {fault.name: getattr(fault, sanitize.partition(",")[0]) for fault in FAULTS}
    assert {name for name, report in found.items() if report} == {
        name for name, report in expected.items() if report
    }
    assert found.keys() >= KERNELS.keys()
