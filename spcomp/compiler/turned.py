"""At ``bind``: a program that scatters along a matrix gathers from its transpose, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.dtypes import bfloat16, float16
from spcomp.ir.program import CoordFunc
from spcomp.locks import Lock
from spcomp.passes.decompose.transpose_scatter import gathered
from spcomp.schedule.steps.sharing.hubs import longest_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.compiler.bind import Frame
    from spcomp.compiler.kernel import BoundKernel, Kernel
    from spcomp.compiler.signature import BufferPlan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LEAST = 2**16  # stored elements that are worth it: each call compares the values with those it has
STRIDE = 2**15  # values compared at a time, which stay in cache


class Turned:
    """A program on the transpose of a bound matrix.

    Elements take their terms in the order that the scatter has, so that the results are the same
    to the bit; but for sums of single numbers, not rows, which run in vector lanes. Values are
    bound by reference: each call compares them with those that were transposed, and transposes
    again where they differ.
    """

    def __init__(self, bound: BoundKernel, values: Array, turned: Array, order: Array) -> None:
        self.bound, self.values, self.turned, self.order = bound, values, turned, order
        self._seen, self._lock = values.copy(), Lock()

    def __call__(self, out: Any, named: Mapping[str, Any]) -> Any:
        """Run the program."""
        if not self._is_current():
            with self._lock:
                self._renew()
        return self.bound(out=out, **named)

    def _is_current(self) -> bool:
        words = f"u{self.values.itemsize}"  # a number that is none differs from itself
        now, seen = self.values.view(words), self._seen.view(words)
        starts = range(0, seen.size, STRIDE)
        return all(np.array_equal(now[k : k + STRIDE], seen[k : k + STRIDE]) for k in starts)

    def _renew(self) -> None:
        if not self._is_current():  # another thread may have been here
            np.take(self.values, self.order, out=self.turned)
            self._seen[...] = self.values


def turned(kernel: Kernel, frame: Frame, named: Mapping[str, Any]) -> Turned | None:
    """Return *kernel* over the transpose of the matrix that it scatters along, if it is in *named*.

    *frame* has what is bound. None where it is not worth it, and where a row of the transpose is so
    long that it would be split, which changes the order of a sum.
    """
    from spcomp.compiler.compile import rebuild

    source, options = kernel.program, kernel.options
    found = gathered(source) if isinstance(source, CoordFunc) and options.trace is None else None
    if found is None or found.matrix.name not in named:
        return None
    plan = frame.interface.by_name[found.matrix.name]
    made = _transposed(plan, frame)
    if made is None:
        return None
    rest = {k: v for k, v in named.items() if k != plan.name and k not in plan.axes[1].arrays}
    matrix, values, order = made
    bound = rebuild(found.func, options).bind(**{plan.name: matrix}, **rest)
    return Turned(bound, values, matrix.data, order)


def _transposed(plan: BufferPlan, frame: Frame) -> tuple[Any, Array, Array] | None:
    """Return the transpose, the values that it is of, and where each of its values was there."""
    from scipy.sparse import csr_array

    rows, columns = plan.axes
    names = (plan.handle, columns.indptr, columns.indices)
    if not all(name in frame.values for name in names) or plan.dtype in (float16, bfloat16):
        return None  # raw arrays are missing, or numbers that scipy does not know
    values, indptr, indices = (frame.values[name] for name in names if name is not None)
    if not LEAST <= len(values) == len(indices):
        return None
    try:
        shape = frame.size_of(rows.length), frame.size_of(columns.length)
    except KeyError:  # which arguments of the calls will say
        return None
    bounds = indptr[0] == 0 and indptr[-1] == len(indices) and len(indptr) == shape[0] + 1
    if not bounds or (np.diff(indptr) < 0).any() or not _within(indices, shape[1]):
        return None  # the call says what is wrong
    build: Any = csr_array
    order = build((np.arange(len(values)), indices, indptr), shape=shape).tocsc()
    longest = int(np.diff(order.indptr).max(initial=0))
    if longest > longest_row(len(values)) or not order.has_canonical_format:
        return None  # too long, or elements that are there twice
    pattern = (part.astype(columns.idtype) for part in (order.indices, order.indptr))
    return build((values[order.data], *pattern), shape=shape[::-1]), values, order.data


def _within(indices: Array, length: int) -> bool:
    return int(indices.min()) >= 0 and int(indices.max()) < length
