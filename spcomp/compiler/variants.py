"""At the first call with new extents: versions of a program with these extents compiled in."""

from __future__ import annotations

import threading
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

MAX_VARIANTS = 8  # versions of one program; what comes later runs the general one
MAX_EXTENT = 1024  # beyond it, what is known of the extent no longer matters

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


def facts(pointers: tuple[str, ...], values: Mapping[str, Any]) -> Facts:
    """Return what *values* of the parameters say about the rows that begin at *pointers*."""
    return Facts(hubs=any(_has_hub(values[name]) for name in pointers))


def _has_hub(indptr: Any) -> bool:
    if indptr is None or len(indptr) < 2:
        return False
    stored = int(indptr[-1]) - int(indptr[0])
    if stored <= longest_row(0):
        return False
    return int((indptr[1:] - indptr[:-1]).max()) > longest_row(stored)


@dataclass(frozen=True, slots=True)
class Version:
    """What tells the versions of a program apart: extents by name, and facts about the data."""

    extents: tuple[tuple[str, int], ...]
    facts: Facts


class Variants(Generic[T]):
    """The versions of a program, *general* unless it is for what a call brings.

    *names*: the extents that are compiled in; *pointers*: the arrays that facts are about. *make*
    compiles a version. There are at most MAX_VARIANTS. May be used by many threads at once.
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
        self._lock = threading.Lock()

    def pick(self, values: Mapping[str, Any]) -> T:
        """Return the version for *values* of the parameters, the general one if there are many."""
        extents = tuple((name, int(values[name])) for name in self.names)
        key = Version(tuple(e for e in extents if e[1] <= MAX_EXTENT), facts(self.pointers, values))
        found = self.made.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self.made:
                if key == Version((), Facts()) or len(self.made) >= MAX_VARIANTS:
                    return self.general
                self.made[key] = self.make(key)
            return self.made[key]
