"""III to III: a GPU's grid on a CPU; loops bound to blocks and threads become plain loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import from_zero, may_fail, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.vectors import can_vectorize
from spcomp.ir.arith.simplify import coefficient, simplify
from spcomp.ir.expr import Const, Expr, Var, binary
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, LoopKind, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class BindThreads(FuncPass):
    """``for b, t in thread_binding: s  ->  for b in parallel: for t in serial: s``.

    The outermost loop over blocks runs in parallel, fused with those nested perfectly in it; other
    loops run in order, and in vectors where the innermost one follows memory. Adjacent loops over
    threads run one after the other, so that the next one reads what the one before it put into a
    shared buffer; a buffer holds the elements of all threads.
    """

    name: ClassVar[str] = "bind_threads"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* without bound loops."""
        if not any(isinstance(n, For) and n.kind == "bound" for n in walk(func.body, skip=Expr)):
            return func
        return func.replace(body=_Emulate(Names(func)).rewrite(func.body))


class _Emulate(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.inside = False  # whether a loop around runs in parallel already

    def visit_For(self, loop: For) -> Node:
        kind = self._kind(loop)
        if kind == "parallel" and loop.kind == "bound":
            loop = self._one_grid(loop)
        outer, self.inside = self.inside, self.inside or kind == "parallel"
        body = self.rewrite(loop.body)
        self.inside = outer
        return loop.replace(kind=kind, thread="", body=body)

    def _kind(self, loop: For) -> LoopKind:
        if loop.kind != "bound":
            return loop.kind
        if loop.thread.startswith("blockIdx"):
            return "serial" if self.inside else "parallel"
        return "vectorized" if _follows_memory(loop) else "serial"

    def _one_grid(self, loop: For) -> For:
        """Return *loop* fused with the loops over blocks nested perfectly in it."""
        while _is_grid(loop, loop.body):
            assert isinstance(loop.body, For)
            inner = loop.body
            index = self.names.var(f"{loop.var.name}_{inner.var.name}")
            values: dict[Var, Expr] = {
                loop.var: binary("//", index, inner.end),
                inner.var: binary("%", index, inner.end),
            }
            trips = simplify(binary("*", binary("max", loop.end, 0), binary("max", inner.end, 0)))
            loop = loop.replace(var=index, end=trips, body=substitute(inner.body, values))
        return loop


def _is_grid(loop: For, inner: Stmt) -> bool:
    """Whether *inner* is a loop over a constant number of blocks, and both begin at 0."""
    if not isinstance(inner, For) or not inner.thread.startswith("blockIdx"):
        return False
    return from_zero(loop) and from_zero(inner) and isinstance(inner.end, Const)


def _follows_memory(loop: For) -> bool:
    """Whether *loop* can run in vectors, and stores to memory in order."""
    if not can_vectorize(loop.body, loop.var) or may_fail(loop.body):
        return False
    stores = [n for n in walk(loop.body) if isinstance(n, Store)]
    places = [i for store in stores for i in store.indices if i is not None]
    return bool(places) and all(
        loop.var in variables(i) and coefficient(i, loop.var) == 1 for i in places
    )
