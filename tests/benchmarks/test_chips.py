"""The table of chips: names, rates that Apple printed, and which chip a machine has."""

from __future__ import annotations

import pytest

from mlx_pam.benchmarks import chips

REGISTRY = """+-o AGXAcceleratorG16X  <class AGXAcceleratorG16X, id 0x100000412, registered>
    {
      "model" = "Apple M4 Max"
      "gpu-core-count" = 32
      "IOSourceVersion" = "329.2"
    }
"""


def test_every_chip_has_a_word_of_its_own() -> None:
    assert len(chips.BY_WORD) == len(chips.CHIPS)
    assert {"m1", "m3-max", "m3-max-30", "m4-max", "m4-max-32"} <= chips.BY_WORD.keys()
    assert chips.BY_WORD["m4-max"].cores == 40


@pytest.mark.parametrize(
    ("word", "teraflops"), [("m1", 2.6), ("m1-pro", 5.2), ("m1-max", 10.4), ("m2", 3.6)]
)
def test_rates_are_those_that_apple_printed(word: str, teraflops: float) -> None:
    assert chips.BY_WORD[word].flops == pytest.approx(teraflops * 1e12, rel=0.03)


def test_more_cores_of_one_generation_are_faster_and_never_have_less_bandwidth() -> None:
    for name in ("M1", "M2", "M3", "M4"):
        family = [chip for chip in chips.CHIPS if chip.name.split()[0] == name]
        family.sort(key=lambda chip: chip.cores)
        assert [chip.bandwidth for chip in family] == sorted(chip.bandwidth for chip in family)
        assert len({chip.flops for chip in family}) == len(family)


def test_a_chip_is_known_by_its_name_and_has_the_cores_that_it_has() -> None:
    assert chips.gpu_cores(REGISTRY) == 32
    chip = chips.identify("Apple M4 Max", 32)
    assert (chip.cores, chip.bandwidth) == (32, 410e9)
    assert chips.identify("Apple M4 Max", None).cores == 40
    eight = chips.identify("Apple M3", 8)  # fewer cores, the same memory
    assert (eight.cores, eight.bandwidth) == (8, 100e9)
    assert eight.flops == pytest.approx(0.8 * chips.BY_WORD["m3"].flops)


def test_what_is_not_known_is_not_guessed() -> None:
    assert chips.gpu_cores("") is None
    assert chips.identify("Apple M9", 12) is None
    assert chips.identify("AMD EPYC", None) is None
