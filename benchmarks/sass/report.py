"""What the machine code of a kernel says about its speed: a value, and its tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.sass.flow import flow, work
from spcomp.runtime.cuda.occupancy import Occupancy, occupancy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.sass.flow import Flow
    from benchmarks.sass.flow import Loop as FlowLoop
    from benchmarks.sass.listing import Instruction, Listing


@dataclass(frozen=True, slots=True)
class Loads:
    """Reads of global memory that a lane has on their way at once, at most, and their bytes."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Trip:
    """Once round a loop, or through a kernel without loops, on the way that does most work.

    Attributes:
        address: of the loop's header; of the first instruction where there is no loop.
        instructions: on this way; *body* counts those of the whole loop.
        kinds: how many of each kind (``listing.KINDS``).
        widths: of the global loads, in bits: how many of each.
        multiply_adds: of a lane.
        in_flight: see ``in_flight``.
    """

    address: int
    instructions: int
    body: int
    kinds: dict[str, int]
    widths: dict[int, int]
    multiply_adds: int
    in_flight: Loads


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one kernel for one architecture.

    Attributes:
        local: instructions that read or write local memory: spills, and arrays with moving indices.
        threads: of a block; 0 if neither the code nor the caller says.
        blocks: edges: of the graph of control flow.
        trips: one for each innermost loop.
        main: the trip that does most work; its loop is where the time goes in long rows.
        nonzeros: that a warp finishes with a trip of *main*; 0 if the caller did not say how.
    """

    kernel: str
    arch: str
    registers: int
    stack: int
    local: int
    shared: int
    threads: int
    occupancy: Occupancy | None
    instructions: int
    blocks: int
    edges: int
    trips: tuple[Trip, ...]
    main: Trip
    nonzeros: float

    @property
    def per_nonzero(self) -> float | None:
        """Instructions of a warp for a non-zero."""
        return self.main.instructions / self.nonzeros if self.nonzeros else None

    @property
    def bytes_in_flight(self) -> int | None:
        """Bytes that all warps of a processor have on their way at once, at most."""
        if self.occupancy is None:
            return None
        return self.main.in_flight.bytes * 32 * self.occupancy.warps

    def as_json(self) -> dict[str, Any]:
        """Return all figures, the derived ones too, as what JSON can hold."""
        derived = {"per_nonzero": self.per_nonzero, "bytes_in_flight": self.bytes_in_flight}
        return asdict(self) | derived

    def __str__(self) -> str:
        return "\n".join(f"{name:24}{value}" for name, value in self._lines())

    def _lines(self) -> Iterable[tuple[str, object]]:
        yield "kernel", f"{self.kernel} ({self.arch})"
        yield "registers", self.registers
        yield "stack, local accesses", f"{self.stack} bytes, {self.local}"
        yield "shared", f"{self.shared} bytes"
        yield "threads of a block", self.threads or "not said"
        if held := self.occupancy:
            yield "occupancy", f"{held.share:.0%}: {held.warps} warps, by {held.limit}"
        yield "code", f"{self.instructions} instructions, {self.blocks} blocks, {self.edges} edges"
        for trip in self.trips:
            mark = "main loop" if trip is self.main else "inner loop"
            yield f"{mark} at {trip.address:#06x}", _trip(trip)
        if not self.trips or self.main not in self.trips:
            yield "no loop with work", _trip(self.main)
        yield "", ", ".join(f"{count} {kind}" for kind, count in self.main.kinds.items())
        if self.per_nonzero is not None:
            yield "instructions/non-zero", f"{self.per_nonzero:.2f} ({self.nonzeros:g} non-zeros)"
        if self.bytes_in_flight is not None:
            yield "in flight/processor", f"{self.bytes_in_flight / 1024:.0f} KiB at most"


def report(
    listing: Listing, *, features: int = 0, nonzeros: float = 0, threads: int = 0, shared: int = 0
) -> Report:
    """Return the figures of *listing*; see ``benchmarks.sass.analyse`` for the numbers."""
    graph = flow(listing)
    every = listing.instructions
    trips = {loop: _figures(graph, loop) for loop in graph.innermost}
    active = [loop for loop in trips if any(work(graph.way(loop)))]
    best = max(active, key=lambda loop: _rank(graph, loop), default=None)
    main = trips[best] if best else _figures(graph, None)
    threads = threads or listing.threads
    shared += listing.shared
    return Report(
        listing.kernel, listing.arch, listing.registers, listing.stack,
        sum(i.kind == "local" for i in every), shared, threads,
        occupancy(listing.arch, threads, listing.registers, shared), len(every),
        graph.graph.number_of_nodes(), graph.graph.number_of_edges(), tuple(trips.values()), main,
        nonzeros or (main.multiply_adds * 32 / features if features else 0),
    )  # fmt: skip


def _rank(graph: Flow, loop: FlowLoop) -> tuple[int, int, int]:
    """The loop with most multiply-adds, or floats; of two alike the one that checks less."""
    code = graph.way(loop)
    products, floats = work(code)
    return products, 0 if products else floats, -len(code)


def _figures(graph: Flow, loop: FlowLoop | None) -> Trip:
    code = graph.way(loop)
    loads = [i for i in code if i.kind == "global load"]
    inside = loop.blocks if loop else graph.graph
    return Trip(
        loop.header if loop else graph.entry, len(code), sum(len(graph.code(b)) for b in inside),
        dict(Counter(i.kind for i in code).most_common()),
        dict(sorted(Counter(i.width for i in loads).items())),
        sum(i.multiply_adds for i in code), in_flight(code * 2 if loop else code),
    )  # fmt: skip


def in_flight(code: Sequence[Instruction]) -> Loads:
    """Return the most loads from global memory that are on their way at once in *code*.

    An instruction that needs the result of a load waits for it, and by then those before it have
    arrived, too. A loop is walked twice, since loads may be for the next trip.
    """
    waiting: list[Instruction] = []
    most = Loads(0, 0)
    for instruction in code:
        touched = instruction.reads | instruction.writes
        needed = [at for at, load in enumerate(waiting) if load.writes & touched]
        if needed:
            del waiting[: max(needed) + 1]
        if instruction.kind == "global load":
            waiting.append(instruction)
            found = Loads(len(waiting), sum(load.width // 8 for load in waiting))
            most = max(most, found, key=lambda each: (each.bytes, each.count))
    return most


def table(reports: Iterable[Report]) -> str:
    """Return a Markdown table with a line for each report."""
    lines = [
        (
            "| kernel | registers | local | shared | warps | instructions | loads | in flight"
            " | KiB/SM | non-zeros | per non-zero |"
        ),
        "|---|---:|---:|---:|---:|---:|---|---|---:|---:|---:|",
    ]
    return "\n".join(lines + [_row(each) for each in reports])


def _row(each: Report) -> str:
    main, held, flying = each.main, each.occupancy, each.bytes_in_flight
    where = "" if main in each.trips else " (no loop)"
    cells = [
        each.kernel,
        each.registers,
        each.local,
        each.shared,
        held.warps if held else "",
        f"{main.instructions}{where}",
        ", ".join(f"{count} x {bits}" for bits, count in main.widths.items()),
        f"{main.in_flight.count} ({main.in_flight.bytes} B)",
        "" if flying is None else f"{flying / 1024:.0f}",
        f"{each.nonzeros:g}" if each.nonzeros else "",
        "" if each.per_nonzero is None else f"{each.per_nonzero:.2f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _trip(trip: Trip) -> str:
    widths = ", ".join(f"{count} of {bits} bits" for bits, count in trip.widths.items())
    return (
        f"{trip.instructions} instructions ({trip.body} in all),"
        f" {trip.multiply_adds} multiply-adds; global loads: {widths or 'none'};"
        f" {trip.in_flight.count} in flight ({trip.in_flight.bytes} bytes)"
    )
