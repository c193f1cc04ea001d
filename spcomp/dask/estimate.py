"""From tasks to numbers: the bytes that workers send each other, their memory and their balance.

A task runs where the fewest bytes have to be sent to. What is sent to a worker stays there for
others, and counts in equal parts for those of its tasks that may be expected to read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.task_spec import DataNode, Task

from spcomp.dask import blocks
from spcomp.dask.chunks import overlaps
from spcomp.dask.collection import DistributedTensor, Values
from spcomp.errors import ArgumentError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dask.highlevelgraph import HighLevelGraph

    from spcomp.dask.graph import Tasks

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
SENT = {  # what the results of tasks are called
    blocks.take: "rows that blocks need",
    blocks.section: "coordinates of these rows",
    blocks.compact: "blocks",
}
LABELS = {**SENT, blocks.needed: "coordinates", blocks.compact: "blocks with these alone"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call costs on so many *workers*.

    *sent*: bytes by what they are. *held*: for each worker the bytes of its blocks of operands and
    results; *peak*: at the worst time, with what one task on it reads and makes. *load*: for each
    worker the bytes that kernels read there. *owners*: the worker of each task, by its key.
    *between*: the bytes that each worker sends each. *edges*: for tasks of one kind that read the
    results of another the bytes that they read, and those that are sent for it.
    """

    workers: int
    sent: Mapping[str, int]
    held: tuple[int, ...]
    peak: tuple[int, ...]
    load: tuple[int, ...]
    owners: Mapping[Any, int] = field(repr=False)
    between: tuple[tuple[int, ...], ...] = field(repr=False)
    edges: Mapping[tuple[str, str], tuple[int, int]] = field(repr=False)

    @property
    def total(self) -> int:
        """All bytes that are sent."""
        return sum(self.sent.values())

    @property
    def balance(self) -> float:
        """The load of the busiest worker, as a multiple of the average."""
        mean = sum(self.load) / self.workers
        return max(self.load) / mean if mean else 1.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{size(n)} of {what}" for what, n in sorted(self.sent.items()))
        lines = (
            f"sent between {self.workers} workers: {size(self.total)}",
            *([f"  {kinds}"] if kinds else []),
            f"memory of a worker: {size(max(self.peak))} at most, {size(max(self.held))} kept",
            f"balance: the busiest worker has {self.balance:.2f} times the average",
        )
        return "\n".join(lines)

    def require(self, memory: int) -> None:
        """Raise OutOfMemoryError if a worker needs more bytes than *memory*."""
        if max(self.peak) > memory:
            raise OutOfMemoryError(
                f"a worker needs {size(max(self.peak))}, and has {size(memory)}",
                hint="take more workers or smaller blocks, or spcomp.dask.write(..., wave=1)",
            )


def size(count: float) -> str:
    """Return *count* bytes with a unit."""
    at = min(int(np.log2(max(count, 1)) // 10), len(UNITS) - 1)
    return f"{count / 1024**at:.4g} {UNITS[at]}"


def estimate(calls: list[Tasks], workers: int) -> Estimate:
    """Return what the tasks of *calls* cost; computes what the blocks of operands need."""
    if not isinstance(workers, int) or workers < 1:
        raise ArgumentError(f"argument workers: got {workers!r}, expected a number above 0")
    walk = _Walk(workers)
    for tasks in calls:
        walk.stage(tasks)
    held = [0] * workers
    for key in walk.kept:
        held[walk.owner[key]] += walk.size[key]
    peak = tuple(h + t for h, t in zip(held, walk.most, strict=True))
    between = tuple(map(tuple, walk.between))
    return Estimate(
        workers,
        dict(walk.sent),
        tuple(held),
        peak,
        tuple(walk.load),
        walk.owner,
        between,
        dict(walk.edges),
    )


@dataclass(slots=True)
class _Walk:
    """Goes through tasks in order: where each runs, the bytes of its result, and who gets them."""

    workers: int
    owner: dict[Any, int] = field(default_factory=dict)
    size: dict[Any, int] = field(default_factory=dict)
    kinds: dict[Any, str] = field(default_factory=dict)
    kept: set[Any] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    arrived: set[tuple[Any, int]] = field(default_factory=set)
    most: list[int] = field(default_factory=list)
    load: list[int] = field(default_factory=list)
    labels: dict[Any, str] = field(default_factory=dict)
    between: list[list[int]] = field(default_factory=list)
    edges: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    readers: Counter[Any] = field(default_factory=Counter)  # how many tasks of a statement

    def __post_init__(self) -> None:
        self.most, self.load = [0] * self.workers, [0] * self.workers
        self.between = [[0] * self.workers for _ in range(self.workers)]

    def stage(self, tasks: Tasks) -> None:
        """Follow the *tasks* of a statement."""
        for name, aligned in tasks.inputs.items():
            self._collection(name, tasks.operands[name], aligned)
        measured = _measured(tasks.result_graph, tasks.layer)
        lists = (t.dependencies for t in tasks.layer.values() if not isinstance(t, DataNode))
        self.readers = Counter(dep for deps in lists for dep in deps)
        for key, task in tasks.layer.items():
            if isinstance(task, DataNode):
                continue
            reads = [dep for dep in task.dependencies if dep in self.size]
            self.size[key] = self._bytes(tasks, key, task, reads, measured)
            self.labels[key] = _label(tasks, key, task)
            self._run(key, task, reads)
        self.kept |= {key for key in tasks.layer if key[0] == tasks.name}

    def _collection(self, name: str, given: Any, aligned: Any) -> None:
        """Place the blocks of *given*, unless a statement made them, and those cut from them."""
        places = list(np.ndindex(*given.numblocks))
        for number, at in enumerate(places):
            key = (given.name, *at)
            if key not in self.size:
                self.size[key] = _block_bytes(given, at)
                self.labels[key] = name
                self.owner[key] = number * self.workers // len(places)
                self.kept.add(key)
        if aligned.name == given.name:
            return
        pieces = [overlaps(a, b) for a, b in zip(given.chunks, aligned.chunks, strict=True)]
        for at in np.ndindex(*aligned.numblocks):
            parts = []
            for chosen in product(*(lists[k] for lists, k in zip(pieces, at, strict=True))):
                old = tuple(piece.block for piece in chosen)
                extents = [chunks[k] for chunks, k in zip(given.chunks, old, strict=True)]
                share = prod(p.end - p.begin for p in chosen) / max(prod(extents), 1)
                parts.append(((given.name, *old), int(share * self.size[given.name, *old])))
            key = (aligned.name, *at)
            self.size[key] = sum(count for _, count in parts)
            self.labels[key] = f"{name}, cut again"
            self.owner[key] = self.owner[max(parts, key=lambda part: part[1])[0]]
            for old_key, count in parts:
                self.owner[f"cut-{aligned.name}", *at, *old_key[1:]] = self.owner[old_key]
                self._edge(old_key, key, count, count)
                if self.owner[old_key] != self.owner[key]:
                    self.sent["blocks cut again"] += count

    def _bytes(
        self, tasks: Tasks, key: Any, task: Task, reads: list[Any], measured: Mapping[Any, int]
    ) -> int:
        """Return the bytes of the result of *task*; of sparse results, those of what it reads."""
        if key in measured:
            return measured[key]
        if task.func is blocks.take:
            (source,) = (dep for dep in reads if dep not in measured)
            (coords,) = (dep for dep in reads if dep in measured)
            extent = tasks.extent(source, task.args[1])
            count = measured[coords] // blocks.index_type(extent).itemsize
            return self.size[source] * count // max(extent, 1)
        if key[0] in tasks.results and tasks.dense is not None:
            chunks = tasks.stage.grid
            at = key[1 : 1 + len(chunks)]
            extents = [lengths[k] for lengths, k in zip(chunks, at, strict=True)]
            return int(prod(extents) * tasks.dense.itemsize)
        return sum(self.size[dep] for dep in reads)

    def _run(self, key: Any, task: Task, reads: list[Any]) -> None:
        """Place *task*, and count what is sent to it."""
        missing, shared = [0] * self.workers, [0.0] * self.workers
        for dep in reads:
            share = max(1, self.readers[dep] / self.workers)  # tasks of a worker that read it
            for worker in range(self.workers):
                if self.owner[dep] != worker and (dep, worker) not in self.arrived:
                    missing[worker] += self.size[dep]
                    shared[worker] += self.size[dep] / share
        worker = min(range(self.workers), key=lambda w: (shared[w], self.load[w]))
        self.owner[key] = worker
        for dep in reads:
            is_sent = self.owner[dep] != worker and (dep, worker) not in self.arrived
            self._edge(dep, key, self.size[dep], self.size[dep] if is_sent else 0)
            if is_sent:
                self.arrived.add((dep, worker))
                self.sent[self.kinds.get(dep, "blocks")] += self.size[dep]
        self.kinds[key] = SENT.get(task.func, "partial results")
        total = sum(self.size[dep] for dep in reads)
        self.most[worker] = max(self.most[worker], missing[worker] + self.size[key] + total)
        if task.func not in SENT and task.func is not blocks.needed:
            self.load[worker] += total

    def _edge(self, dep: Any, key: Any, read: int, sent: int) -> None:
        """Count the bytes that the task *key* reads of *dep*, and those that are sent for it."""
        worker = self.owner[key]
        sent = sent if self.owner[dep] != worker else 0
        before = self.edges.get(kinds := (self.labels[dep], self.labels[key]), (0, 0))
        self.edges[kinds] = before[0] + read, before[1] + sent
        self.between[self.owner[dep]][worker] += sent


def _label(tasks: Tasks, key: Any, task: Task) -> str:
    """Return what tasks like *task* make."""
    target = tasks.stage.statement.target.name
    if task.func in LABELS:
        return LABELS[task.func]
    if key[0] == tasks.name:
        return target
    return f"parts of {target}" if key[0].startswith("partial-") else f"sums of {target}"


def _block_bytes(collection: Any, at: tuple[int, ...]) -> int:
    if isinstance(collection, DistributedTensor):
        return int(collection.statistics()[at].size)
    extents = [int(chunks[k]) for chunks, k in zip(collection.chunks, at, strict=True)]
    return prod(extents) * int(collection.dtype.itemsize)


def _measured(graph: HighLevelGraph, layer: Mapping[Any, Any]) -> dict[Any, int]:
    """Return the bytes of the coordinates that blocks need, which are computed for that."""
    keys = [
        key
        for key, task in layer.items()
        if isinstance(task, Task) and task.func in (blocks.needed, blocks.section)
    ]
    found = Values(graph, keys).compute() if keys else []
    return {key: int(array.nbytes) for key, array in zip(keys, found, strict=True)}
