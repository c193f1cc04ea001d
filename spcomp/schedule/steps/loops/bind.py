"""The step of stage II that gives a loop to an index of the grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import THREADS, For
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.legality.dependence import loops_of, promised, writes_of
from spcomp.schedule.nests.nests import find_loop, replaced
from spcomp.schedule.steps.base import Step, known
from spcomp.schedule.steps.loops.annotate import sharing
from spcomp.schedule.steps.sharing.split_nnz import named


@dataclass(frozen=True, slots=True)
class Bind(Step):
    """``for i in serial(n): s  ->  for i in thread_binding(n, thread): s``.

    Legal where the iterations are independent, or share only what an ``atomic`` block updates; that
    they write at coordinates of a sorted axis without repetitions will do, a call checks it. The
    loop runs from 0 to what is known before the program starts; no loop around it or inside it has
    the same index; and loops of the same nest that have it run equally often. On a CPU the
    outermost ``blockIdx`` loop runs in parallel and the others in order. Source: TVM's bind.
    """

    name: ClassVar[str] = "bind"
    loop: str
    thread: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop run by the grid."""
        loop = find_loop(func, self.loop, self, span)
        if self.thread not in THREADS:
            hint = known(THREADS, "indices of the grid")
            raise self._error(f"there is no index {self.thread!r}", loop, span, hint)
        if not from_zero(loop):
            raise self._error("it does not begin at 0", loop, span, "split it")
        if not _known_before(func, loop.end):
            hint = "split it by a constant, and bind the inner loop"
            raise self._error("how often it runs depends on what is computed", loop, span, hint)
        func, found = promised(func, loop, atomic=True)
        if found:
            raise self._error(str(found[0]), loop, span)
        bound = sharing(func, loop).replace(kind="bound", thread=self.thread)
        new = replaced(func, loop, bound)
        if (why := bound_twice(new, bound)) is not None:
            raise self._error(why, loop, span)
        return new


def bound_twice(func: Func, loop: For) -> str | None:
    """Say why *loop* cannot have its index of the grid beside other loops of the nest, or None."""
    nest = next(x for x in loops_of(func.body) if any(n is loop for n in statements(x)))
    values = named(func.body)
    for other in loops_of(nest):
        if other is loop or other.thread != loop.thread:
            continue
        for outer, inner in ((other, loop), (loop, other)):
            if any(n is inner for n in statements(outer.body)):
                return f"{outer.var.name!r}, bound to {loop.thread}, is around {inner.var.name!r}"
        if not expr_equal(substitute(other.end, values), substitute(loop.end, values)):
            return (
                f"{other.var.name!r} is bound to {loop.thread} too, and is not known to run"
                f" as often as {loop.var.name!r}"
            )
    return None


def _known_before(func: Func, end: Expr) -> bool:
    """Whether *end* can be computed before the program starts."""
    end = substitute(end, named(func.body))
    written = writes_of(func.body)
    reads = [n.buffer for n in walk(end) if isinstance(n, (Load, Search))]
    given = all(b.data is not None and memory_of(b) not in written for b in reads)
    return given and variables(end) <= {*func.params}
