"""Apple's chips as they are published: GPU cores, clock and bandwidth; and which one is here.

A core has 128 float32 lanes, each of which multiplies and adds once a cycle. Sources: cores and
bandwidth are Apple's technical specifications; lanes, and the clocks of M1 and M2, are those of
github.com/philipturner/metal-benchmarks; the clocks of M3 and M4 are those of hmc-tech.com/gpu.
Apple states no rate for M3 and later, and other sources differ by up to an eighth. M5 and later
multiply matrices in units of their own, and are not in the table.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
from dataclasses import dataclass

LANES = 128
GIGA = 1e9


@dataclass(frozen=True)
class Chip:
    """What is published of one chip."""

    name: str
    cores: int
    """Of the GPU."""
    clock: float
    """Hz."""
    bandwidth: float
    """Bytes/s between GPU and memory."""

    @property
    def flops(self) -> float:
        """Float32 operations/s: all lanes of all cores at work."""
        return 2 * LANES * self.cores * self.clock

    @property
    def word(self) -> str:
        """The name on a command line: `m4-max`; `m4-max-32` has fewer cores and less bandwidth."""
        word = self.name.lower().replace(" ", "-")
        first = next(chip for chip in CHIPS if chip.name == self.name)
        return word if self == first else f"{word}-{self.cores}"


def _chips(clock: float, *rows: tuple[str, int, float]) -> list[Chip]:
    return [Chip(name, cores, clock * GIGA, bandwidth * GIGA) for name, cores, bandwidth in rows]


CHIPS = [
    *_chips(1.278, ("M1", 8, 68)),
    *_chips(1.296, ("M1 Pro", 16, 200), ("M1 Max", 32, 400), ("M1 Ultra", 64, 800)),
    *_chips(
        1.398, ("M2", 10, 100), ("M2 Pro", 19, 200), ("M2 Max", 38, 400), ("M2 Ultra", 76, 800)
    ),
    *_chips(1.398, ("M3", 10, 100), ("M3 Pro", 18, 150), ("M3 Max", 40, 400), ("M3 Max", 30, 300)),
    *_chips(1.398, ("M3 Ultra", 80, 819)),
    *_chips(1.578, ("M4", 10, 120), ("M4 Pro", 20, 273), ("M4 Max", 40, 546), ("M4 Max", 32, 410)),
]
BY_WORD = {chip.word: chip for chip in CHIPS}


def cores_here() -> int | None:
    """GPU cores of this Mac; None elsewhere, or if the system does not say."""
    if platform.system() != "Darwin":
        return None
    return gpu_cores(_output("ioreg", "-rc", "AGXAccelerator", "-d", "1"))


def this_chip() -> Chip | None:
    """The chip of this Mac with the cores that it has; None where it is not in the table."""
    if platform.system() != "Darwin":
        return None
    return identify(_output("sysctl", "-n", "machdep.cpu.brand_string"), cores_here())


def identify(brand: str, cores: int | None) -> Chip | None:
    """The chip of that name, e.g. `Apple M4 Max`, nearest in cores; None cores: the full one."""
    named = [chip for chip in CHIPS if brand == f"Apple {chip.name}"]
    if not named or cores is None:
        return named[0] if named else None
    nearest = min(named, key=lambda chip: abs(chip.cores - cores))
    return dataclasses.replace(nearest, cores=cores)


def gpu_cores(registry: str) -> int | None:
    """GPU cores in what `ioreg` prints of the accelerator."""
    found = re.search(r'"gpu-core-count"\s*=\s*(\d+)', registry)
    return int(found[1]) if found else None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
