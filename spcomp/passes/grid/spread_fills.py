"""III to III: a nest without blocks and threads that stores each element once gets many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import injective, simplify
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Const, Expr, Var, binary
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, Store
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class SpreadFills(FuncPass):
    """``for i: for k in 8: c[8 * i + k] = 0  ->  for n in parallel: c[n] = 0``.

    A schedule for a GPU that leaves the start of a result as it is, as those of SparseTIR do, would
    otherwise have one thread do it. Only nests outside all other loops are changed, whose one store
    reads nothing that it writes and never meets itself.
    """

    name: ClassVar[str] = "spread_fills"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with parallel fills."""
        body = _Spreader(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Spreader(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_For(self, loop: For) -> Node:
        loops, store = _fill(loop)
        if store is None:
            return loop
        outer = {x.var for x in loops}
        if any(variables(x.end) & outer or not isinstance(x.end, Const) for x in loops[1:]):
            return loop.replace(kind="parallel")
        index = self.names.var("_".join(x.var.name for x in loops))
        values: dict[Var, Expr] = {}
        rest: Expr = index
        for inner in reversed(loops[1:]):
            values[inner.var] = binary("%", rest, inner.end)
            rest = binary("//", rest, inner.end)
        values[loop.var] = rest
        trips = binary("max", loop.end, 0)
        for inner in loops[1:]:
            trips = binary("*", trips, inner.end)
        body = substitute(store, values)
        at = body.indices[0]
        body = body if at is None else body.replace(indices=(simplify(at),))
        return loop.replace(var=index, end=simplify(trips), body=body, kind="parallel")


def _fill(loop: For) -> tuple[list[For], Store | None]:
    """Return the loops of a perfect nest, and its store if its iterations run in any order."""
    loops, stmt = [loop], loop.body
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    plain = all(x.kind in ("serial", "unroll") and from_zero(x) for x in loops)
    if not plain or not isinstance(stmt, Store) or stmt.atomic or stmt.mask is not None:
        return loops, None
    ranges = {x.var: (x.begin, x.end) for x in loops}
    apart = all(injective(stmt.indices, x.var, ranges) for x in loops)
    own = any(memory_of(buffer) is memory_of(stmt.buffer) for buffer in read_by(stmt.value))
    return loops, stmt if apart and not own else None
