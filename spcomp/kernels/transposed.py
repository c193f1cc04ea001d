"""At ``bind``: a program that scatters along a matrix gathers from its transpose instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import bfloat16, float16
from spcomp.ir.program import CoordFunc
from spcomp.knobs import Knobs, knobs_of
from spcomp.locks import Lock
from spcomp.passes.decompose.transpose_scatter import transpose_scatter
from spcomp.schedule.steps.sharing.hubs import longest_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spcomp.compiler.interface import BufferPlan
    from spcomp.compiler.options import Options
    from spcomp.kernels.frame import Frame


LEAST = 2**16  # stored elements that are worth it, as each call compares the values
STRIDE = 2**15  # values compared at a time, which stay in cache


@dataclass(frozen=True, slots=True, eq=False)
class Transpose:
    """The transpose of a bound *matrix* along which a program scatters.

    *func* gathers from *transposed*, which has the *values* of the matrix in *order*; *rest*: the
    other bound arguments.
    """

    func: CoordFunc
    matrix: str
    transposed: Any
    values: Array
    order: Array
    rest: Mapping[str, Any]


class TransposedOperand:
    """A program *bound* to the transpose of a matrix, which follows the matrix.

    Elements add their terms in the same order as in the scatter, so that the results are the same
    to the bit, except for sums of single numbers, not rows, which run in vector lanes. Values are
    bound by reference: each call compares them with those that were transposed, and transposes
    again where they differ.
    """

    def __init__(self, bound: Callable[..., Any], transpose: Transpose) -> None:
        self.bound, self.values, self.order = bound, transpose.values, transpose.order
        self.transposed: Array = transpose.transposed.data
        self._last, self._lock = self.values.copy(), Lock()

    def __call__(self, out: Any, named: Mapping[str, Any]) -> Any:
        """Run the program."""
        if not self._is_current():
            with self._lock:
                self._update()
        return self.bound(out=out, **named)

    def _is_current(self) -> bool:
        words = f"u{self.values.itemsize}"  # as a nan differs from itself
        now, last = self.values.view(words), self._last.view(words)
        starts = range(0, last.size, STRIDE)
        return all(np.array_equal(now[k : k + STRIDE], last[k : k + STRIDE]) for k in starts)

    def _update(self) -> None:
        if not self._is_current():  # another thread may have been here
            np.take(self.values, self.order, out=self.transposed)
            self._last[...] = self.values


def transpose_of(
    program: Any, options: Options, frame: Frame, named: Mapping[str, Any]
) -> Transpose | None:
    """Return the transpose of the matrix that *program* scatters along, if it is in *named*.

    *frame* has the bound arguments. None where it does not pay, and where a row of the transpose is
    so long that it would be split, which changes the order of a sum.
    """
    is_open = isinstance(program, CoordFunc) and options.trace is None
    gather = transpose_scatter(program) if is_open else None
    if gather is None or gather.matrix.name not in named:
        return None
    plan = frame.interface.by_name[gather.matrix.name]
    arrays = _transposed(plan, frame, knobs_of(options.target))
    if arrays is None:
        return None
    rest = {k: v for k, v in named.items() if k != plan.name and k not in plan.axes[1].arrays}
    return Transpose(gather.func, plan.name, *arrays, rest)


def _transposed(plan: BufferPlan, frame: Frame, knobs: Knobs) -> tuple[Any, Array, Array] | None:
    """Return the transpose, the values of the matrix, and the position there of each of its values.

    None where it does not pay, or one of its rows would be split in pieces.
    """
    from scipy.sparse import csr_array

    rows, columns = plan.axes
    names = (plan.handle, columns.indptr, columns.indices)
    if not all(name in frame.values for name in names) or plan.dtype in (float16, bfloat16):
        return None  # raw arrays are missing, or scipy lacks the dtype
    values, indptr, indices = (frame.values[name] for name in names if name is not None)
    if not LEAST <= len(values) == len(indices):
        return None
    try:
        shape = frame.size_of(rows.length), frame.size_of(columns.length)
    except KeyError:  # arguments of the calls will say it
        return None
    bounds = indptr[0] == 0 and indptr[-1] == len(indices) and len(indptr) == shape[0] + 1
    within = 0 <= int(indices.min()) <= int(indices.max()) < shape[1]
    if not bounds or (np.diff(indptr) < 0).any() or not within:
        return None  # the call says what is wrong
    build: Any = csr_array
    order = build((np.arange(len(values)), indices, indptr), shape=shape).tocsc()
    longest = int(np.diff(order.indptr).max(initial=0))
    most = longest_row(knobs.hub_piece, len(values), share=knobs.hub_share)
    if longest > most or not order.has_canonical_format:
        return None  # a long row, or repeated elements
    pattern = (part.astype(columns.idtype) for part in (order.indices, order.indptr))
    return build((values[order.data], *pattern), shape=shape[::-1]), values, order.data
