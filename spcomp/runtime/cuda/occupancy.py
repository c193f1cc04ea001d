"""Beside launches: how many warps a processor of a GPU holds, from what a block takes."""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = 65536  # of a processor, on all of these
_RESERVED = 1024  # shared bytes of a block that the system keeps
_UNIT = 128  # bytes in which shared memory is given out


@dataclass(frozen=True, slots=True)
class Processor:
    """What one streaming multiprocessor holds at most (CUDA C++ Programming Guide)."""

    warps: int
    blocks: int
    shared: int  # bytes


PROCESSORS = {
    "sm_80": Processor(64, 32, 164 * 1024),
    "sm_86": Processor(48, 16, 100 * 1024),
    "sm_89": Processor(48, 24, 100 * 1024),
    "sm_90": Processor(64, 32, 228 * 1024),
    "sm_100": Processor(64, 32, 228 * 1024),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Warps that a processor holds at a time, as a share of the most, and what sets the limit."""

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(arch: str, threads: int, registers: int, shared: int) -> Occupancy | None:
    """Return the occupancy by blocks of *threads*; None if *arch* or their number is not known."""
    processor = PROCESSORS.get(arch.rstrip("af"))
    if processor is None or not threads:
        return None
    warps = -(-threads // 32)
    of_warp = -(-max(registers, 1) * 32 // 256) * 256
    quarter = REGISTERS // 4 // of_warp * 4  # each of the four parts has a quarter of the registers
    of_block = -(-(shared + _RESERVED) // _UNIT) * _UNIT
    limits = {
        "warps": processor.warps // warps,
        "blocks": processor.blocks,
        "registers": quarter // (-(-warps // 4) * 4),
        "shared": processor.shared // of_block,
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / processor.warps, limit)
