"""III to III: a thread adds up what it has for an element before it updates that for all."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Reduction, accumulator, as_reduction, combine, identity
from spcomp.ir.arith.memory import read_by
from spcomp.ir.axis import Buffer, memory_of
from spcomp.ir.expr import Const, Expr, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Stmt, Store, seq
from spcomp.knobs import CUDA_GRID
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class Accumulate(FuncPass):
    """``for j: atomic c[i] += x[j]  ->  s = 0; for j: s += x[j]; atomic c[i] += s``.

    Atomic updates come in any order anyway. Nothing is updated where the loop has no iteration.
    """

    name: ClassVar[str] = "accumulate"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with atomic updates outside loops that repeat them."""
        body = _Accumulator(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Accumulator(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_For(self, loop: For) -> Node:
        found = _repeated(loop) if loop.kind in ("serial", "unroll") else None
        return self.visit_Node(loop) if found is None else self._outside(loop, *found)

    def _outside(
        self, loop: For, store: Store, picks: tuple[For, ...], reduction: Reduction
    ) -> Stmt:
        """Return *loop* with the update behind it, for each element that *picks* name."""
        sizes = [int(pick.end.value) for pick in picks if isinstance(pick.end, Const)]
        dtype = accumulator(reduction.identity[0].dtype)
        name = self.names.unique(f"{store.buffer.name}_sum")
        sums = Buffer(name, None, (const(prod(sizes)),), dtype, "local")
        place = _flat(tuple(pick.var for pick in picks), sizes)
        value = combine(reduction.combiner, Load(sums, (place,)), cast(reduction.value, dtype))
        body = Replace(store, Store(sums, (place,), value, span=store.span)).rewrite(loop.body)
        total = Load(sums, (place,))
        old = cast(Load(store.buffer, store.indices), dtype)
        update = cast(combine(reduction.combiner, old, total), store.buffer.dtype)
        neutral = identity(reduction.combiner, dtype)
        start = self._each(picks, Store(sums, (place,), neutral, span=store.span))
        end = self._each(picks, store.replace(value=update))
        runs = binary("<", loop.begin, loop.end)
        if not (isinstance(runs, Const) and runs.value):
            end = If(runs, end, span=loop.span)
        return Alloc(sums, seq(start, loop.replace(body=body), end), span=loop.span)

    def _each(self, picks: tuple[For, ...], stmt: Stmt) -> Stmt:
        """Return *stmt* in copies of the loops *picks*."""
        for pick in reversed(picks):
            var = self.names.var(pick.var.name)
            stmt = For(var, pick.begin, pick.end, substitute(stmt, {pick.var: var}), "unroll")
        return stmt


def _flat(places: tuple[Var, ...], sizes: list[int]) -> Expr:
    result: Expr = const(0)
    for place, size in zip(places, sizes, strict=True):
        result = plus(binary("*", result, size), place)
    return result


def _repeated(loop: For) -> tuple[Store, tuple[For, ...], Reduction] | None:
    """Return the only update in *loop* if all its iterations repeat it, and is atomic.

    With it come the loops inside that pick its element, and what it does.
    """
    stmt, inner = loop.body, []
    while isinstance(stmt, For) and stmt.kind in ("serial", "unroll"):
        inner.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, Store) or not stmt.atomic or stmt.mask is not None:
        return None
    index, reduction = stmt.indices[0], as_reduction(stmt)
    if index is None or reduction is None or reduction.is_tuple or index.dtype.lanes > 1:
        return None
    picks = tuple(pick for pick in inner if pick.var in variables(index))
    constant = all(from_zero(p) and isinstance(p.end, Const) and p.end.value > 0 for p in picks)
    if loop.var in variables(index) or not constant:
        return None
    if prod(int(p.end.value) for p in picks if isinstance(p.end, Const)) > CUDA_GRID.thread_sums:
        return None
    others = (*(end for x in inner for end in (x.begin, x.end)), reduction.value, index)
    if any(memory_of(buffer) is memory_of(stmt.buffer) for buffer in read_by(*others)):
        return None
    return stmt, picks, reduction
