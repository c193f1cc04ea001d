"""At the first call with new extents: versions of a program with these extents compiled in."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import Var

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


class Variants(Generic[T]):
    """The versions of a program by the values of its inner extents, at most MAX_VARIANTS of them.

    *make* compiles one for the constants given. May be used by many threads at once.
    """

    def __init__(
        self, general: T, names: tuple[str, ...], make: Callable[[dict[str, int]], T]
    ) -> None:
        self.general, self.names, self.make = general, names, make
        self.made: dict[tuple[int, ...], T] = {}
        self._lock = threading.Lock()

    def pick(self, values: Mapping[str, Any]) -> T:
        """Return the version for *values* of the parameters, the general one if there are many."""
        key = tuple([values[name] for name in self.names])
        found = self.made.get(key)
        if found is not None:
            return found
        constants = {n: int(v) for n, v in zip(self.names, key, strict=True) if v <= MAX_EXTENT}
        with self._lock:
            if key not in self.made:
                if not constants or len(self.made) >= MAX_VARIANTS:
                    return self.general
                self.made[key] = self.make(constants)
            return self.made[key]
