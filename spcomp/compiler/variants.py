"""At a call: the versions of a program, specialised for extents and for facts about the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from spcomp.ir.access import Load
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs, knobs_of
from spcomp.locks import Lock
from spcomp.schedule.default.facts import MOST_ROW, Facts
from spcomp.schedule.steps.sharing.hubs import PIECES, longest_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.ir.func import Func
    from spcomp.ir.program import CoordFunc
    from spcomp.target import Target

MAX_KEPT = 32  # versions of one program that it keeps; compile keeps more
PARTS = 256  # of the rows, as many as there are chunks

T = TypeVar("T")


def inner_extents(func: Func) -> tuple[str, ...]:
    """Return the parameters that are the extent of a buffer's innermost dense axis.

    Loops over such an axis are innermost: with a known trip count they become register tiles
    without a remainder. The length of a sparse axis does not count: each matrix has another.
    """
    sparse = {axis.length for axis in func.axes if axis.is_sparse}
    names: dict[str, None] = {}
    for buffer in func.buffers:
        if not isinstance(buffer, SparseBuffer) or len(buffer.axes) < 2:
            continue
        extent = buffer.axes[-1].length
        is_dense = buffer.axes[-1].kind == "dense_fixed"
        if is_dense and isinstance(extent, Var) and extent not in sparse:
            names[extent.name] = None
    return tuple(names)


def follows_one_matrix(func: CoordFunc) -> bool:
    """Return whether *func* reads and writes what is stored where its iterations are, and no more.

    It has one sparse axis, in compressed rows without repetitions, so that nothing is merged or
    searched, and no step relies on an order of coordinates.
    """
    sparse = [axis for axis in func.axes if axis.is_sparse]
    axis, rows = (sparse[0], sparse[0].parent) if len(sparse) == 1 else (None, None)
    if axis is None or rows is None or rows.parent is not None:
        return False
    if not axis.is_variable or not axis.unique or axis.is_assembled:
        return False
    nodes = list(walk(func.body))
    iterations = [n for n in nodes if isinstance(n, SpIter) and len(n.domains) == len(n.vars)]
    domains = [dict(zip(n.domains, n.vars, strict=True)) for n in iterations]
    places = [(at.get(rows), at[axis]) for at in domains if axis in at]
    accesses = (n for n in nodes if isinstance(n, (Load, Store)) and axis in _axes(n.buffer))
    return all(access.indices[:2] in places for access in accesses)


def _axes(buffer: AnyBuffer) -> tuple[Axis, ...]:
    return buffer.axes if isinstance(buffer, SparseBuffer) else ()


def row_pointers(func: Func) -> tuple[str, ...]:
    """Return the names of the arrays that say where the rows of *func*'s matrices begin."""
    axes = (a for a in func.axes if a.is_variable and a.parent is not None and not a.parent.parent)
    return tuple(dict.fromkeys(axis.indptr.name for axis in axes if axis.indptr is not None))


def lists_of_rows(func: Func) -> tuple[tuple[str, str], ...]:
    """Return the names of the arrays that say where lists of fibers begin, and of their extents."""
    parents = {axis.parent for axis in func.axes}
    axes = (a for a in func.axes if a.is_variable and a.is_sparse and a in parents and a.indptr)
    pairs = ((a.indptr, a.length) for a in axes if a.parent and not a.parent.parent)
    return tuple((p.name, size.name) for p, size in pairs if p and isinstance(size, Var))


def are_full(lists: Collection[tuple[str, str]], values: Mapping[str, Any], knobs: Knobs) -> bool:
    """Return whether lists have on average so many entries that it pays to look for all rows."""
    found = [(values[p], int(values[size])) for p, size in lists if p in values and size in values]
    share = knobs.full_share
    return bool(share and found) and all(
        size * (len(indptr) - 1) <= share * _stored(indptr) for indptr, size in found
    )


def repeatable_keys(func: Func) -> tuple[str, ...]:
    """Return the names of the arrays of *func* whose coordinates are sorted and may repeat."""
    axes = (a for a in func.axes if a.indices is not None and a.sorted and not a.unique)
    names = (a.indices.name for a in axes if a.indices and a.parent and not a.parent.parent)
    return tuple(dict.fromkeys(names))


def facts(
    pointers: tuple[str, ...],
    values: Mapping[str, Any],
    knobs: Knobs,
    *,
    hubs: bool,
    narrow: bool = False,
) -> Facts:
    """Return the facts about the rows of a call's matrices.

    *pointers*: the names of their indptr arrays in *values*, the arguments; *hubs*: whether to look
    for long rows; *narrow*: whether each element stands for few operations.
    """
    arrays = [values.get(name) for name in pointers]
    least = longest_row(min(knobs.hub_piece, knobs.hub_piece_few), 0)
    large = [a for a in arrays if a is not None and len(a) > 1 and _stored(a) > least]
    parts = [_facts_of(a, knobs, hubs=hubs, narrow=narrow) for a in large]
    most = max((len(a) - 1 for a in arrays if a is not None), default=0)
    return Facts(
        hubs=any(f.hubs for f in parts),
        skewed=any(f.skewed for f in parts),
        row=max(map(_row_class, arrays), default=0) if knobs.asks_rows else 0,
        few=0 < most <= knobs.few_rows,
        piece=max((f.piece for f in parts if f.hubs), default=0),
    )


def _row_class(indptr: Any) -> int:
    """Return the mean length of the rows that begin where *indptr* says, as Facts have it."""
    rows = 0 if indptr is None else len(indptr) - 1
    mean = -(-_stored(indptr) // rows) if rows > 0 else 0
    return min(MOST_ROW, 1 << max(0, mean - 1).bit_length()) if mean else 0


def _facts_of(indptr: Any, knobs: Knobs, *, hubs: bool, narrow: bool) -> Facts:
    rows, stored = len(indptr) - 1, _stored(indptr)
    longest = int(np.diff(indptr).max()) if hubs else 0
    piece = _piece(rows, stored, longest, knobs)
    shared = longest > longest_row(piece, stored, rows * narrow, knobs.hub_share)
    alone = longest > longest_row(piece, stored, share=knobs.hub_share) and not shared
    skewed = _is_skewed(indptr, knobs.skew_factor, alone=alone)
    return Facts(hubs=shared, skewed=skewed, piece=piece if knobs.asks_rows else 0)


def _piece(rows: int, stored: int, longest: int, knobs: Knobs) -> int:
    """Return how many elements of a very long row, of *longest*, a thread or group should do.

    It is a power of two, and more where all rows have many. Where rows are few and short, too, it
    is less: others have nothing to do in the meantime.
    """
    if rows <= knobs.few_rows and longest <= PIECES * PIECES * knobs.hub_piece:
        return knobs.hub_piece_few
    share = stored // knobs.hub_share
    return max(knobs.hub_piece, min(knobs.hub_piece_most, 1 << max(0, share.bit_length() - 1)))


def has_long_run(keys: Any, knobs: Knobs) -> bool:
    """Return whether one of the ascending *keys* occurs so often that threads should share it.

    Only the keys at the places of :func:`samples` are looked at.
    """
    sampled = keys[[*samples(len(keys), knobs)]]
    return bool((sampled[2:] == sampled[:-2]).any())


def samples(count: int, knobs: Knobs) -> range:
    """Return the places at which *count* keys are sampled: none if there are few keys."""
    many = count > knobs.run_keys
    return range(0, count, -(-count // knobs.run_samples)) if many else range(0)


def is_narrow(names: Collection[str], values: Mapping[str, Any], knobs: Knobs) -> bool:
    """Return whether the extents called *names* are known and small: few operations an element."""
    most = knobs.narrow_operations
    return bool(names) and all(int(values.get(name, most + 1)) <= most for name in names)


def _stored(indptr: Any) -> int:
    return int(indptr[-1]) - int(indptr[0])


def _is_skewed(indptr: Any, factor: int, *, alone: bool) -> bool:
    """Whether one of PARTS parts with equally many rows holds *factor* times the average.

    A row counts for two elements, as in split_nnz. *alone*: leave out the longest row of each
    part, which one thread does while the others do the remaining rows.
    """
    rows = len(indptr) - 1
    begins = np.arange(0, rows, -(-rows // PARTS))
    parts = np.diff(indptr[begins], append=indptr[-1])
    if alone:
        parts = parts - np.maximum.reduceat(np.diff(indptr), begins)
    total = int(parts.sum(dtype=np.int64)) + 2 * rows
    return int(parts.max()) + 2 * -(-rows // PARTS) > factor * total / len(parts)


@dataclass(frozen=True, slots=True)
class Version:
    """The key of one version of a program: extents by name, and facts about the data."""

    extents: tuple[tuple[str, int], ...]
    facts: Facts


class Variants(Generic[T]):
    """The versions of a program: *general*, and better ones for the arguments of some calls.

    *target*: its thresholds decide. *names*: the extents that are compiled in. *pointers* (indptr),
    *keys* (sorted coordinates that may repeat) and *lists* (indptr of lists of rows, and how many
    rows there are): what facts are about. *make* compiles a version. Versions round sums
    differently, so the one that a call gets depends on that call only, not on earlier ones. Many
    threads may use this at once.
    """

    def __init__(
        self,
        target: Target,
        general: T,
        names: tuple[str, ...],
        pointers: tuple[str, ...],
        make: Callable[[Version], T],
        keys: tuple[str, ...] = (),
        lists: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.general, self.names, self.pointers, self.make = general, names, pointers, make
        self.keys, self.lists, self.knobs = keys, lists, knobs_of(target)
        self.versions: dict[Version, T] = {}
        self._lock = Lock()

    def pick(self, values: Mapping[str, Any]) -> T:
        """Return the version for *values* of the parameters."""
        extents = ((name, int(values[name])) for name in self.names)
        narrow = is_narrow(self.names, values, self.knobs)
        hubs = bool(self.names) or self.knobs.asks_rows
        data_facts = facts(self.pointers, values, self.knobs, hubs=hubs, narrow=narrow)
        if any(has_long_run(values[name], self.knobs) for name in self.keys if name in values):
            data_facts = replace(data_facts, runs=True)
        if are_full(self.lists, values, self.knobs):
            data_facts = replace(data_facts, full=True)
        key = Version(tuple(e for e in extents if is_worth(e[1], self.knobs)), data_facts)
        version = self.versions.get(key)
        if version is not None:
            return version
        if key == Version((), Facts()):
            return self.general
        with self._lock:
            if key not in self.versions:
                newest = list(self.versions.items())[1 - MAX_KEPT :]
                self.versions = {**dict(newest), key: self.make(key)}
            return self.versions[key]


def is_worth(extent: int, knobs: Knobs) -> bool:
    """Whether to compile a version for *extent*: with the CPU's knobs, 240 extents have one."""
    between = extent <= knobs.extent_large and extent % knobs.extent_multiple == 0
    return extent <= knobs.extent_small or between
