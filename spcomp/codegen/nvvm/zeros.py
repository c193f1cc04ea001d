"""Before code for a GPU: sums of which nobody sees whether a zero has a sign."""

from __future__ import annotations

from spcomp.ir import stmt as st
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import trip_count
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Broadcast, Const, Expr
from spcomp.ir.program import FlatFunc
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk


def unsigned_sums(func: FlatFunc) -> frozenset[AnyBuffer]:
    """Return the vectors of threads that only hold one term of other sums, which begin with 0.

    ``0.0 + x`` then is as good as ``x``: what such a vector is added to is 0.0 or no zero at all,
    and the sign of a zero is lost there.
    """
    own = {n.buffer for n in walk(func.body) if isinstance(n, st.Alloc) and n.buffer.dtype.is_float}
    stores = [node for node in walk(func.body) if isinstance(node, st.Store)]
    sums = own - {s.buffer for s in stores if not (_is_zero(s.value) or added(s) is not None)}
    updates = [(s.buffer, value) for s in stores if (value := added(s)) is not None]
    reads = [node.buffer for node in walk(func.body) if isinstance(node, Load)]
    seen = {buffer: reads.count(buffer) for buffer in sums}
    for buffer, value in updates:
        if buffer in seen:
            seen[buffer] -= 1
        if buffer in sums and isinstance(value, Load) and value.buffer in seen:
            seen[value.buffer] -= 1
    single = frozenset(buffer for buffer, others in seen.items() if not others)
    return single & _vectors(stores) - _repeated(func)


def _vectors(stores: list[st.Store]) -> set[AnyBuffer]:
    return {s.buffer for s in stores if (at := s.indices[0]) is not None and at.dtype.lanes > 1}


def _repeated(func: FlatFunc) -> set[AnyBuffer]:
    """Return the buffers that a loop of several trips updates while they exist."""
    found: set[AnyBuffer] = set()
    for alloc in (n for n in walk(func.body) if isinstance(n, st.Alloc)):
        loops = (n for n in walk(alloc.body) if isinstance(n, st.For) and n.kind != "bound")
        many = (n for loop in loops if trip_count(loop) != 1 for n in walk(loop.body))
        if any(isinstance(n, st.Store) and n.buffer is alloc.buffer for n in many):
            found.add(alloc.buffer)
    return found


def added(store: st.Store) -> Expr | None:
    """Return what *store* adds to the element that it writes, None if it does anything else."""
    value = store.value
    if not isinstance(value, BinOp) or value.op != "+" or store.atomic:
        return None
    old = value.lhs
    if not isinstance(old, Load) or old.buffer is not store.buffer:
        return None
    same = all(map(expr_equal, old.indices, store.indices))
    return value.rhs if same and store.mask is None else None


def _is_zero(value: Expr) -> bool:
    single = value.value if isinstance(value, Broadcast) else value
    return isinstance(single, Const) and str(single.value) == "0.0"
