"""At the first call with new extents: versions of a program with these extents compiled in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import Var
from spcomp.locks import Lock
from spcomp.schedule.default.cpu import Facts
from spcomp.schedule.steps.sharing.hubs import longest_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.ir.func import Func

MAX_KEPT = 32  # versions of one program that it keeps; compile keeps more
SMALL_EXTENT = 128  # up to it all extents are compiled in
MAX_EXTENT = 1024  # beyond it, what is known of the extent no longer matters
PARTS = 256  # of the rows, as many as there are chunks
NARROW = 16  # operations of an element: with fewer, a row costs as much as several elements
RUNS = 32  # parts of sorted coordinates: one that fills two of them is shared
UNEVEN = 8  # how much heavier than the others a part must be for balancing to be worth it
STEP = 8  # extents in between are compiled in if they are a multiple, as most are

T = TypeVar("T")


def inner_extents(func: Func) -> tuple[str, ...]:
    """Return the parameters that are the extent of a buffer's innermost dense axis.

    Loops over such an axis are innermost: with their trip counts known, they become register
    tiles without a rest. The length of a sparse axis differs from matrix to matrix and is none.
    """
    sparse = {axis.length for axis in func.axes if axis.is_sparse}
    found: dict[str, None] = {}
    for buffer in func.buffers:
        if not isinstance(buffer, SparseBuffer) or len(buffer.axes) < 2:
            continue
        extent = buffer.axes[-1].length
        is_dense = buffer.axes[-1].kind == "dense_fixed"
        if is_dense and isinstance(extent, Var) and extent not in sparse:
            found[extent.name] = None
    return tuple(found)


def row_pointers(func: Func) -> tuple[str, ...]:
    """Return the names of the arrays that say where the rows of *func*'s matrices begin."""
    axes = (a for a in func.axes if a.is_variable and a.parent is not None and not a.parent.parent)
    return tuple(dict.fromkeys(axis.indptr.name for axis in axes if axis.indptr is not None))


def repeated(func: Func) -> tuple[str, ...]:
    """Return the names of the arrays with sorted coordinates of *func* that may repeat."""
    axes = (a for a in func.axes if a.indices is not None and a.sorted and not a.unique)
    names = (a.indices.name for a in axes if a.indices and a.parent and not a.parent.parent)
    return tuple(dict.fromkeys(names))


def facts(
    pointers: tuple[str, ...], values: Mapping[str, Any], *, hubs: bool, narrow: bool = False
) -> Facts:
    """Return what *values* of the parameters say about the rows that begin at *pointers*.

    *hubs*: long rows are looked for; *narrow*: each element stands for few operations.
    """
    arrays = [values.get(name) for name in pointers]
    large = [a for a in arrays if a is not None and len(a) > 1 and _stored(a) > longest_row(0)]
    found = [_facts_of(a, hubs=hubs, narrow=narrow) for a in large]
    return Facts(hubs=any(f.hubs for f in found), skewed=any(f.skewed for f in found))


def _facts_of(indptr: Any, *, hubs: bool, narrow: bool) -> Facts:
    rows, stored = len(indptr) - 1, _stored(indptr)
    longest = int(np.diff(indptr).max()) if hubs else 0
    shared = longest > longest_row(stored, rows * narrow)
    alone = longest > longest_row(stored) and not shared
    return Facts(hubs=shared, skewed=_is_skewed(indptr, alone=alone))


def has_long_run(keys: Any) -> bool:
    """Return whether one of ascending *keys* is there so often that threads share it.

    The keys at the places of :func:`samples` say so.
    """
    found = keys[[*samples(len(keys))]]
    return bool((found[2:] == found[:-2]).any())


def samples(count: int) -> range:
    """Return the places of *count* keys that are looked at: none if there are few."""
    return range(0, count, -(-count // RUNS)) if count > RUNS * 1024 else range(0)


def is_narrow(names: Collection[str], values: Mapping[str, Any]) -> bool:
    """Return whether the extents called *names* are known, and each element has few operations."""
    return all(int(values.get(name, MAX_EXTENT)) <= NARROW for name in names)


def _stored(indptr: Any) -> int:
    return int(indptr[-1]) - int(indptr[0])


def _is_skewed(indptr: Any, *, alone: bool) -> bool:
    """Whether one of PARTS parts with equally many rows holds UNEVEN times what all do on average.

    A row counts for two elements, as in split_nnz. *alone*: apart from the longest row of each
    part, which one thread does while others do the rest.
    """
    rows = len(indptr) - 1
    begins = np.arange(0, rows, -(-rows // PARTS))
    parts = np.diff(indptr[begins], append=indptr[-1])
    if alone:
        parts = parts - np.maximum.reduceat(np.diff(indptr), begins)
    total = int(parts.sum(dtype=np.int64)) + 2 * rows
    return int(parts.max()) + 2 * -(-rows // PARTS) > UNEVEN * total / len(parts)


@dataclass(frozen=True, slots=True)
class Version:
    """What tells the versions of a program apart: extents by name, and facts about the data."""

    extents: tuple[tuple[str, int], ...]
    facts: Facts


class Variants(Generic[T]):
    """The versions of a program, *general* unless there is a better one for what a call brings.

    *names*: the extents that are compiled in; *pointers* and *keys*, sorted coordinates that may
    repeat: the arrays that facts are about. *make* compiles a version. Which one a call gets
    depends on the call only, not on those before it, as sums are rounded differently. May be used
    by many threads at once.
    """

    def __init__(
        self,
        general: T,
        names: tuple[str, ...],
        pointers: tuple[str, ...],
        make: Callable[[Version], T],
        keys: tuple[str, ...] = (),
    ) -> None:
        self.general, self.names, self.pointers, self.make = general, names, pointers, make
        self.keys = keys
        self.made: dict[Version, T] = {}
        self._lock = Lock()

    def pick(self, values: Mapping[str, Any]) -> T:
        """Return the version for *values* of the parameters."""
        extents = ((name, int(values[name])) for name in self.names)
        narrow = is_narrow(self.names, values)
        known = facts(self.pointers, values, hubs=bool(self.names), narrow=narrow)
        runs = any(has_long_run(values[name]) for name in self.keys if name in values)
        known = replace(known, runs=runs)
        key = Version(tuple(e for e in extents if is_worth(e[1])), known)
        found = self.made.get(key)
        if found is not None:
            return found
        if key == Version((), Facts()):
            return self.general
        with self._lock:
            if key not in self.made:
                kept = list(self.made.items())[1 - MAX_KEPT :]
                self.made = {**dict(kept), key: self.make(key)}
            return self.made[key]


def is_worth(extent: int) -> bool:
    """Whether a version for *extent* is compiled: there are at most 240 of them."""
    return extent <= SMALL_EXTENT or (extent <= MAX_EXTENT and extent % STEP == 0)
