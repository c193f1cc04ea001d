"""Beside the kernels: what the emulator's machine code found wrong, as an error for users."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spcomp.errors import EmulationError, Span
from spcomp.runtime.emulator import layout as at
from spcomp.runtime.emulator.provenance import LOCAL
from spcomp.runtime.emulator.sites import Site
from spcomp.runtime.emulator.translate import Program

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory with a name: its first address, its size and the size of an element, in bytes."""

    name: str
    low: int
    size: int
    element: int
    shared: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Report:
    """What a launch of *program* left: *words* are those of the launch, *eras* of its blocks."""

    program: Program
    words: np.ndarray[Any, np.dtype[np.int64]]
    eras: np.ndarray[Any, np.dtype[np.uint32]]
    order: np.ndarray[Any, np.dtype[np.int64]]
    buffers: Sequence[Buffer]
    grid: Extent
    block: Extent

    def error(self) -> EmulationError:
        """Return the error that says what is wrong, where, and in which threads."""
        kinds = {
            at.RACE: self._race,
            at.OUT_OF_BOUNDS: self._bounds,
            at.MISALIGNED: self._alignment,
            at.READ_ONLY_WRITTEN: self._read_only,
            at.DIVERGENT: self._divergent,
            at.OUTSIDE_MASK: self._mask,
            at.PARTIAL_WARP: self._partial,
            at.ENDLESS: self._endless,
            at.TRAPPED: self._trapped,
            at.DIVIDED: self._divided,
        }
        fault = int(self.words[at.FAULT])
        return kinds[fault]() if fault in kinds else self._limit(fault)

    @property
    def _site(self) -> Site:
        return self.program.sites[int(self.words[at.FAULT_SITE])]

    @property
    def _thread(self) -> Extent:
        return _index(int(self.words[at.FAULT_THREAD]), self.block)

    @property
    def _block(self) -> Extent:
        return _index(int(self.words[at.FAULT_BLOCK]), self.grid)

    def _who(self) -> str:
        return f"thread {self._thread} of block {self._block}"

    def _error(self, kind: str, message: str, *, hint: str = "", **more: Any) -> EmulationError:
        fields = {
            "threads": (self._thread,),
            "blocks": (self._block,),
            "lines": (self._site.place,),
        }
        return EmulationError(message, span(self._site), hint=hint, kind=kind, **(fields | more))

    def _place(self) -> tuple[str, dict[str, Any]]:
        """Return what lies at the address, as text and as fields of the error."""
        address, number = int(self.words[at.FAULT_ADDRESS]), self._site.base
        if number <= LOCAL:
            return f"beyond its local variable, in {self._site.place}", {}
        near = [self.buffers[number]] if number >= 0 else self._candidates(address)
        if not near:
            return f"address {address:#x}", {}
        buffer = near[0]
        index = (address - buffer.low) // buffer.element
        where = f"{buffer}[{index}]" if buffer.element > 1 else f"byte {index} of {buffer}"
        return where, {"buffer": buffer.name, "index": index}

    def _candidates(self, address: int) -> list[Buffer]:
        """Return the buffers from the one nearest to *address* on."""
        shared = self._site.space == at.SHARED
        found = [b for b in self.buffers if b.shared == shared or self._site.space == at.GENERIC]
        return sorted(found, key=lambda b: max(b.low - address, address - b.low - b.size + 1, 0))

    def _race(self) -> EmulationError:
        stamp = int(self.words[at.FAULT_STAMP]) & ((1 << 64) - 1)
        other = self.program.sites[stamp & (at.MOST_SITES - 1)]
        thread = _index((stamp >> at.THREAD_AT) & (at.MOST_THREADS - 1), self.block)
        run = bisect_right(self.eras[self.eras > 0].tolist(), stamp >> at.ERA_AT) - 1
        block = _index(int(self.order[run]), self.grid)
        where, fields = self._place()
        same = block == self._block
        return self._error(
            "race",
            f"{self._who()} {_DOES[self._site.access]} {where}, which thread {thread} of block "
            f"{block} {_DID[other.access]} in {other.place}, and nothing orders them",
            hint="a barrier between the two"
            if same
            else "blocks of a launch are never ordered: use atomics, or two launches",
            lines=(self._site.place, other.place),
            threads=(self._thread, thread),
            blocks=(self._block, block),
            **fields,
        )

    def _bounds(self) -> EmulationError:
        where, fields = self._place()
        name = fields.get("buffer")
        size = next((b.size // b.element for b in self.buffers if b.name == name), None)
        has = f", which has {size} elements" if size is not None else ""
        does = _DOES[self._site.access]
        return self._error("bounds", f"{self._who()} {does} {where}{has}", **fields)

    def _alignment(self) -> EmulationError:
        where, fields = self._place()
        return self._error(
            "alignment",
            f"{self._who()} {_DOES[self._site.access]} {where}, whose address is not a multiple of "
            f"{self._site.align} bytes",
            **fields,
        )

    def _read_only(self) -> EmulationError:
        where, fields = self._place()
        return self._error(
            "read-only", f"{self._who()} writes {where}, which is only for reading", **fields
        )

    def _divergent(self) -> EmulationError:
        site = self.program.sites[int(self.words[at.FAULT_OTHER_SITE])]
        other = _index(int(self.words[at.FAULT_OTHER]), self.block)
        if other == self._thread:
            message = f"{self._who()} waits in {self._site.place} for threads that are elsewhere"
        else:
            message = (
                f"{self._who()} waits in {self._site.place}, thread {other} in {site.place}, and "
                "neither can go on"
            )
        return self._error(
            "barrier",
            message,
            hint="all threads of a block, or of a mask, must come to the same barrier",
            lines=(self._site.place, site.place),
            threads=(self._thread, other),
            blocks=(self._block, self._block),
        )

    def _mask(self) -> EmulationError:
        message = f"{self._who()} is not in the mask of {self._site.place}"
        return self._error("barrier", message)

    def _partial(self) -> EmulationError:
        message = f"{self._who()} is in a warp without all 32 lanes, which {self._site.place} needs"
        return self._error("barrier", message)

    def _endless(self) -> EmulationError:
        message = f"{self._who()} accesses memory {at.MOST_ACCESSES} times without an end"
        return self._error(
            "limit", message, hint="a thread cannot wait for others by reading memory in a loop"
        )

    def _trapped(self) -> EmulationError:
        return self._error("trap", f"{self._who()} comes to {self._site.place}")

    def _divided(self) -> EmulationError:
        message = f"{self._who()} divides by 0, or overflows, in {self._site.place}"
        return self._error("division", message)

    def _limit(self, fault: int) -> EmulationError:
        what = {at.TOO_MANY_ERAS: f"{at.MOST_ERAS} barriers and blocks"}.get(
            fault, f"{at.MOST_CLOCKS} warp synchronisations between two barriers"
        )
        return EmulationError(
            f"the launch has more than {what}, too many to check",
            kind="limit",
            hint="check=False, or a smaller grid",
        )


_DOES = ("reads", "writes", "updates")
_DID = ("read", "wrote", "updated")


def span(site: Site) -> Span | None:
    """Return the place of *site* in the source, if its line says so."""
    found = re.fullmatch(r"(.+?):(\d+)(?::(\d+))?", site.line)
    return Span(found[1], int(found[2]), int(found[3] or 1) - 1) if found else None


def _index(number: int, extent: Extent) -> Extent:
    """Return the index (x, y, z) of the *number*-th thread or block."""
    x, y, _ = extent
    return number % x, number // x % y, number // (x * y)
