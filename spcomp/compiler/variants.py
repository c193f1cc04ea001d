"""At the first call with new extents: versions of a program with these extents compiled in."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import Var
from spcomp.schedule.default_trace import Facts
from spcomp.schedule.hubs import longest_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.ir.stmt import Func

MAX_KEPT = 32  # versions of one program that it keeps; compile keeps more
SMALL_EXTENT = 128  # up to it all extents are compiled in
MAX_EXTENT = 1024  # beyond it, what is known of the extent no longer matters
PARTS = 256  # of the rows, as many as there are chunks
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


def facts(pointers: tuple[str, ...], values: Mapping[str, Any], *, hubs: bool) -> Facts:
    """Return what *values* of the parameters say about the rows that begin at *pointers*.

    *hubs*: long rows are looked for.
    """
    arrays = [values.get(name) for name in pointers]
    large = [a for a in arrays if a is not None and len(a) > 1 and _stored(a) > longest_row(0)]
    long = hubs and any(int((a[1:] - a[:-1]).max()) > longest_row(_stored(a)) for a in large)
    return Facts(hubs=long, skewed=any(map(_is_skewed, large)))


def _stored(indptr: Any) -> int:
    return int(indptr[-1]) - int(indptr[0])


def _is_skewed(indptr: Any) -> bool:
    """Whether one of PARTS parts with equally many rows holds UNEVEN times what all do on average.

    A row counts for two elements, as in split_nnz.
    """
    rows = len(indptr) - 1
    step = -(-rows // PARTS)
    begins = indptr[:-1:step]
    most = int((begins[1:] - begins[:-1]).max(initial=0))
    most = max(most, int(indptr[-1]) - int(begins[-1]))
    return most + 2 * step > UNEVEN * (_stored(indptr) + 2 * rows) / len(begins)


@dataclass(frozen=True, slots=True)
class Version:
    """What tells the versions of a program apart: extents by name, and facts about the data."""

    extents: tuple[tuple[str, int], ...]
    facts: Facts


class Variants(Generic[T]):
    """The versions of a program, *general* unless there is a better one for what a call brings.

    *names*: the extents that are compiled in; *pointers*: the arrays that facts are about. *make*
    compiles a version. Which one a call gets depends on the call only, not on those before it, as
    sums are rounded differently. May be used by many threads at once.
    """

    def __init__(
        self,
        general: T,
        names: tuple[str, ...],
        pointers: tuple[str, ...],
        make: Callable[[Version], T],
    ) -> None:
        self.general, self.names, self.pointers, self.make = general, names, pointers, make
        self.made: dict[Version, T] = {}
        self._lock = threading.RLock()
        _ALL.add(self)

    def pick(self, values: Mapping[str, Any]) -> T:
        """Return the version for *values* of the parameters."""
        extents = ((name, int(values[name])) for name in self.names)
        known = facts(self.pointers, values, hubs=bool(self.names))
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


_ALL: weakref.WeakSet[Variants[Any]] = weakref.WeakSet()


def _renew_locks() -> None:
    """In the child of a fork: a thread that was making a version is not there."""
    for variants in list(_ALL):
        variants._lock = threading.RLock()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def is_worth(extent: int) -> bool:
    """Whether a version for *extent* is compiled: there are at most 240 of them."""
    return extent <= SMALL_EXTENT or (extent <= MAX_EXTENT and extent % STEP == 0)
