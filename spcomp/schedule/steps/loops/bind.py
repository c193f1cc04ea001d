"""In position space: the step bind, which maps a loop to an index of the grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.arith.memory import are_constant, read_by
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import THREADS, For
from spcomp.ir.visitor import statements
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.legality.order import with_order
from spcomp.schedule.legality.reductions import reduces_over_threads
from spcomp.schedule.nests.claims import binding_clash, note_permission, permission_hint
from spcomp.schedule.nests.cooperation import shared_by_threads
from spcomp.schedule.nests.nests import find_loop, reduction_loops, replace_stmt
from spcomp.schedule.nests.values import binding_values
from spcomp.schedule.steps.base import Step, names_hint

_PARTIAL = "rfactor it first: each thread then has a partial result, and these are added up"


@dataclass(frozen=True, slots=True)
class Bind(Step):
    """``for i in serial(n): s  ->  for i in thread_binding(n, thread): s``.

    Legal where the iterations are independent, share only what an ``atomic`` block updates, or
    write at coordinates of a sorted axis without repetitions, which each call then checks; threads
    of a block may also reduce into one element by the innermost loop. The
    loop must begin at 0, and its end be known before the program starts. No loop around it or
    inside it may have the same index, and loops of the nest that have it must run equally often.
    If a loop over the same threads is around a nest that each of them would run alike, a copy for
    instance, that loop goes behind the nest, which the threads then run together.
    On a CPU the outermost ``blockIdx`` loop runs in parallel and the others in order. Source:
    TVM's bind.
    """

    name: ClassVar[str] = "bind"
    loop: str
    thread: str

    def plan(self, func: Func) -> Func:
        """Return *func* with the loop bound; only that shows whether its index is free."""
        loop = find_loop(func, self.loop, self)
        if self.thread not in THREADS:
            hint = names_hint(THREADS, "indices of the grid")
            raise self.error(f"there is no index {self.thread!r}", loop, hint)
        if not from_zero(loop):
            raise self.error("it does not begin at 0", loop, "split it")
        if not _known_at_launch(func, loop.end):
            reduces = "rfactor the inner loop, and bind it"
            then = reduces if _reduces(func, loop) else "and bind the inner loop"
            hint = f"split it by a constant, {then}"
            raise self.error("how often it runs depends on what is computed", loop, hint)
        func, clashes = with_order(func, loop, atomic=True)
        bound = loop.replace(kind="bound", thread=self.thread)
        if not reduces_over_threads(bound):
            if clashes:
                hint = permission_hint(func, loop) or (_PARTIAL if _reduces(func, loop) else "")
                raise self.error(str(clashes[0]), loop, hint)
            bound = note_permission(func, loop).replace(kind="bound", thread=self.thread)
        new = replace_stmt(func, loop, bound)
        new = self._together(new, bound)
        bound = next(x for x in loops_of(new.body) if x.var is bound.var)
        if (why := binding_clash(new, bound)) is not None:
            raise self.error(why, loop)
        return new

    def _together(self, func: Func, loop: For) -> Func:
        """Return *func* with a loop over the same threads around *loop* moved behind its nest.

        *func* comes back where this is not possible.
        """
        around = (x for x in loops_of(func.body) if x is not loop and x.thread == self.thread)
        outer = next((x for x in around if loop in statements(x.body)), None)
        if outer is None or not self.thread.startswith("threadIdx"):
            return func
        return shared_by_threads(func, outer, loop) or func


def _reduces(func: Func, loop: For) -> bool:
    """Whether iterations of *loop* are added up in one element."""
    return loop.var in reduction_loops(func)


def _known_at_launch(func: Func, end: Expr) -> bool:
    """Whether *end* can be computed before the program starts."""
    end = substitute(end, binding_values(func.body))
    given = all(buffer.data is not None for buffer in read_by(end))
    return given and are_constant((end,), func.body) and variables(end) <= {*func.params}
