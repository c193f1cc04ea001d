"""Below the features of a candidate: the caches, threads and vectors of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spcomp.codegen.cpu.machine import resolve
from spcomp.runtime.pool import get_num_threads
from spcomp.target import Target

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes; *l1* and *l2* are those of one core, *l3* is shared by all.

    The defaults are a common processor; Linux says what this one has.
    """

    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 32 << 20
    threads: int = 1
    vector_bits: int = 256

    @property
    def caches(self) -> tuple[int, int, int]:
        """The sizes of the caches, the nearest first."""
        return self.l1, self.l2, self.l3


def this_machine() -> Machine:
    """Return this machine, with the threads that calls now use."""
    return _machine(get_num_threads())


@cache
def _machine(threads: int) -> Machine:
    sizes = _cache_sizes(_CACHES)
    return Machine(**sizes, threads=threads, vector_bits=resolve(Target()).vector_bits)


def _cache_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of data caches that Linux lists in *folder*, by field of a Machine."""
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        unit = _UNITS.get(size[-1:])
        if kind != "Instruction" and level in "123" and unit and size[:-1].isdigit():
            sizes[f"l{level}"] = int(size[:-1]) * unit
    return sizes
