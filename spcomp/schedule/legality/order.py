"""Under the oracle: loops that are independent because a call checks the order of coordinates."""

from __future__ import annotations

from spcomp.ir.access import Load
from spcomp.ir.arith.memory import writes_of
from spcomp.ir.func import Func
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import Conflict, conflicts, single_fiber


def ascending_axes(func: Func) -> set[str]:
    """Return the axes, by name, whose coordinates calls of *func* check and *func* never writes."""
    checked = {*func.attr("order_needed", ())}
    written = writes_of(func.body) if checked else set()
    return {axis.name for axis in func.axes if axis.name in checked and axis.indices not in written}


def with_order(func: Func, loop: For, *, atomic: bool = False) -> tuple[Func, tuple[Conflict, ...]]:
    """Return *func* with what it must promise for *loop* to be independent, and what is left.

    The promise is that the coordinates that *loop* writes at are distinct; a call checks it. It is
    made only where nothing else is in the way; *func* comes back as it was where none is needed.
    """
    clashes = conflicts(loop, atomic=atomic, ascending=ascending_axes(func))
    if not clashes:
        return func, ()
    promising = _with_order_of(func, loop)
    remaining = conflicts(loop, atomic=atomic, ascending=ascending_axes(promising))
    return (func, clashes) if remaining else (promising, ())


def _with_order_of(func: Func, loop: For) -> Func:
    """Return *func* with the promise that the coordinates that *loop* writes at are distinct."""
    stores = [n for n in walk(loop.body) if isinstance(n, Store)]
    loads = (n for s in stores for i in s.indices if i is not None for n in walk(i))
    axes = (single_fiber(n.buffer) for n in loads if isinstance(n, Load))
    names = {axis.name for axis in axes if axis is not None} | {*func.attr("order_needed", ())}
    return func.with_attr("order_needed", tuple(sorted(names)))
