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

    *bandwidth*: bytes in a second from memory; 0 where it can be measured. The defaults are a
    common processor; Linux says what this one has. Of a GPU, *threads* are its multiprocessors, and
    the cache that they share is both *l2* and *l3*.
    """

    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 32 << 20
    threads: int = 1
    vector_bits: int = 256
    bandwidth: float = 0.0

    @property
    def caches(self) -> tuple[int, int, int]:
        """The sizes of the caches, the nearest first."""
        return self.l1, self.l2, self.l3


def _gpu(multiprocessors: int, l1: int, l2: int, bandwidth: float) -> Machine:
    """Return a GPU; *l1* in KiB, *l2* in MiB, *bandwidth* in bytes in a nanosecond."""
    return Machine(l1 << 10, l2 << 20, l2 << 20, multiprocessors, 128, bandwidth * 1e9)


GPUS = {  # the largest GPU of each architecture, from NVIDIA's papers on these
    "sm_80": _gpu(108, 192, 40, 2039),
    "sm_86": _gpu(84, 128, 6, 1008),
    "sm_87": _gpu(16, 192, 4, 205),
    "sm_89": _gpu(142, 128, 96, 1008),
    "sm_90": _gpu(132, 256, 50, 4800),
    "sm_100": _gpu(148, 256, 126, 8000),
    "sm_120": _gpu(188, 128, 128, 1792),
}


def machine_of(target: Target) -> Machine:
    """Return the machine that code for *target* runs on, with the threads that calls now use.

    A GPU that is not known is taken for an A100.
    """
    if target.kind == "cpu":
        return this_machine()
    return GPUS.get(target.cpu.rstrip("a"), GPUS["sm_80"])


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
