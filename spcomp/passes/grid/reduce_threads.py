"""III to III: a reduction over threads combines their partial results, in warps by shuffles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import (
    conjuncts,
    from_zero,
    read_by,
    trip_count,
    uncast,
    variables,
)
from spcomp.ir.analysis.grid import THREADS, not_constant
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import EAGER, Reduction, as_reduction, combine
from spcomp.ir.arith.simplify import coefficient, simplify
from spcomp.ir.axis import WARP, AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Const, Expr, UnOp, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import WARPS, Alloc, For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import children, statements, walk
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class ReduceThreads(FuncPass):
    """``for t in threads: c[0] = c[0] + x[t]  ->  p[t] = x[t]; tree over p; c[0] = c[0] + p[0]``.

    In groups of 2 to 32 neighbouring threads, each adds what its partner at distance 16, 8, ... 1
    has (a butterfly); other groups add halves in shared memory. Both orders depend on the number
    of threads only, so the same inputs give the same bits.
    """

    name: ClassVar[str] = "reduce_threads"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* without loops over threads that update one element."""
        func = func.replace(body=_NoEmptyLoops().rewrite(func.body))
        body = _Reducer(func).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _NoEmptyLoops(Rewriter):
    """Drops loops without iterations, lest what they would add up is added behind them."""

    def visit_For(self, loop: For) -> Node:
        return Seq(()) if trip_count(loop) == 0 else self.visit_Node(loop)


class _Reducer(Rewriter):
    def __init__(self, func: FlatFunc) -> None:
        self.names = Names(func)
        loops = [n for n in statements(func.body) if isinstance(n, For) and n.thread in THREADS]
        self.wide = max((trip_count(x) or 1 for x in loops if x.thread == THREADS[0]), default=1)
        self.is_row = all(trip_count(x) == 1 for x in loops if x.thread != THREADS[0])
        self.neutral: Store | None = None  # what stands before the statement: it stores the start

    def visit_Seq(self, stmts: Seq) -> Node:
        """Leave out a store of the neutral element before the reduction that starts from it."""
        result: list[Stmt] = []
        for before, stmt in zip((None, *stmts.body), stmts.body, strict=False):
            if isinstance(stmt, For) and _is_start(before, stmt):
                assert isinstance(before, Store)
                self.neutral = before
                result.pop()
            result.append(self.rewrite(stmt))
            self.neutral = None
        return seq(*result)

    def visit_For(self, loop: For) -> Node:
        store = _shared_update(loop) if loop.thread.startswith("threadIdx") else None
        if store is None:
            return self.visit_Node(loop)
        if trip_count(loop) is None:
            raise not_constant(loop)
        reduction = as_reduction(store)
        if reduction is None or reduction.is_tuple:
            raise LoweringError(
                f"threads of {loop.var.name} write one element of {store.buffer.name}",
                store.span or loop.span,
                hint="threads share an element only in a sum, product, minimum or maximum",
            )
        return self._tree(loop, store, reduction)

    def _tree(self, loop: For, store: Store, reduction: Reduction) -> Stmt:
        """Return *loop* with a partial result for each thread, which are then combined."""
        neutral, self.neutral = self.neutral, None
        size = trip_count(loop) or 0
        dtype = reduction.identity[0].dtype
        scope = WARP if self._are_lanes(loop, size) else "shared"
        partial = Buffer(self.names.unique("partial"), None, (const(size),), dtype, scope)
        update = Store(
            partial,
            (loop.var,),
            combine(reduction.combiner, Load(partial, (loop.var,)), reduction.value),
            span=store.span,
        )
        body = _Swap(store, update).rewrite(loop.body)
        start = Store(partial, (loop.var,), reduction.identity[0], span=store.span)
        own = self.rewrite(loop.replace(body=seq(start, body)))  # it may update other elements too
        stages, last = self._stages(loop, partial, size, reduction)
        total = Load(last[-1], (const(0),))
        value: Expr = total
        if neutral is None:
            old = cast(Load(store.buffer, store.indices), dtype)
            value = combine(reduction.combiner, old, total)
        shared = store.atomic and store.buffer.scope != "local"
        final: Stmt = store.replace(value=cast(value, store.buffer.dtype), mask=None, atomic=shared)
        inner = _Inner.of(loop)
        if inner.differs(store.indices[0]):
            raise LoweringError(
                f"the loop {loop.var.name} over threads is not the innermost of a reduction",
                loop.span,
                hint="reorder it behind those that pick the element",
            )
        for around in reversed(_around(loop.body, store) or ()):
            final = self._as_around(around, final, inner)
        result: Stmt = seq(own, *stages, final)
        for buffer in reversed(last):
            result = Alloc(buffer, result, span=loop.span)
        return result

    def _are_lanes(self, loop: For, size: int) -> bool:
        """Whether the threads of *loop* are neighbours in a warp that begin at a multiple."""
        aligned = size in WARPS and (self.is_row or self.wide % size == 0)
        return aligned and loop.thread == THREADS[0]

    def _as_around(self, node: Node, stmt: Stmt, inner: _Inner) -> Stmt:
        """Return *stmt*, the same for all threads, inside what *node* puts around a statement."""
        match node:
            case Let(var=var, value=value) if var not in inner.variables:
                fresh = self.names.var(var.name, var.dtype)
                return Let(fresh, value, substitute(stmt, {var: fresh}), span=node.span)
            case If(cond=cond):
                terms = [_of_any(term, inner.variables) for term in conjuncts(cond)]
                for term in reversed([x for x in terms if not inner.differs(x)]):
                    stmt = If(term, stmt, span=node.span)
                return stmt
        return stmt

    def _stages(
        self, loop: For, partial: Buffer, size: int, reduction: Reduction
    ) -> tuple[list[Stmt], list[Buffer]]:
        """Return the steps of the tree, and the buffers that they use, the result in the last."""
        stages: list[Stmt] = []
        buffers = [partial]
        if partial.scope != WARP:
            while size > 1:
                half = (size + 1) // 2
                var = self.names.var(loop.var.name)
                here, there = Load(partial, (var,)), Load(partial, (binary("+", var, half),))
                value = combine(reduction.combiner, here, there)
                add = Store(partial, (var,), value, span=loop.span)
                stages.append(_threads(loop, var, size - half, add))
                size = half
            return stages, buffers
        lanes = size
        while size > 1:
            size //= 2
            before, name = buffers[-1], self.names.unique("partial")
            after = Buffer(name, None, partial.shape, partial.dtype, WARP)
            var = self.names.var(loop.var.name)
            there = Load(before, (binary("^", var, size),))
            op = EAGER.get(reduction.combiner, reduction.combiner)
            value = BinOp(op, Load(before, (var,)), there)
            add = Store(after, (var,), value, span=loop.span)
            stages.append(_threads(loop, var, lanes, add))
            buffers.append(after)
        return stages, buffers


def _is_start(before: Stmt | None, loop: For) -> bool:
    """Whether *before* stores the neutral element to the one that the threads of *loop* update."""
    if not isinstance(before, Store) or not loop.thread.startswith("threadIdx"):
        return False
    store = _shared_update(loop)
    reduction = None if store is None else as_reduction(store)
    if store is None or reduction is None or before.buffer is not store.buffer:
        return False
    same = expr_equal(before.indices[0], store.indices[0]) and before.mask is None
    start = uncast(before.value)
    return same and isinstance(start, Const) and start.value == reduction.identity[0].value


def _threads(loop: For, var: Var, size: int, body: Stmt) -> For:
    """Return a loop over the first *size* threads of *loop*."""
    return For(var, const(0), const(size), body, "bound", loop.thread, span=loop.span)


@dataclass(slots=True)
class _Inner:
    """What differs between iterations inside a loop, and is not there behind it.

    *variables*, also of values that use others or *buffers*; whether they begin at 0.
    """

    variables: dict[Var, bool]
    buffers: set[AnyBuffer]

    @classmethod
    def of(cls, loop: For) -> _Inner:
        """Return what differs inside *loop*."""
        inner = cls({loop.var: from_zero(loop)}, set())
        for node in statements(loop.body):
            if isinstance(node, For):
                inner.variables[node.var] = from_zero(node)
            elif isinstance(node, Alloc):
                inner.buffers.add(node.buffer)
            elif isinstance(node, Let) and inner.differs(node.value):
                inner.variables[node.var] = False
        return inner

    def differs(self, value: Expr | None) -> bool:
        """Whether *value* may differ between iterations."""
        assert value is not None
        reads = not self.buffers.isdisjoint(read_by(value))
        return reads or bool(variables(value) & self.variables.keys())


def _shared_update(loop: For) -> Store | None:
    """Return the store by which the iterations of *loop* update one element, if they do."""
    private = {n.buffer for n in statements(loop.body) if isinstance(n, Alloc)}
    bound = {n.var: n.value for n in statements(loop.body) if isinstance(n, Let)}
    for node in statements(loop.body):
        if not isinstance(node, Store) or node.buffer in private:
            continue
        if node.atomic and node.buffer.scope != "local":
            continue
        if _is_empty(node.buffer):  # no index tells its elements apart
            continue
        index = node.indices[0]
        assert index is not None
        if not private.isdisjoint(read_by(index)):  # each iteration has an element of its own
            continue
        if loop.var not in _reach(index, bound) and _reads_itself(node):
            return node
    return None


def _of_any(cond: Expr, inner: dict[Var, bool]) -> Expr:
    """Return whether *cond* holds for any values of *inner*; *cond* where that is unknown."""
    for var in variables(cond) & inner.keys():
        if isinstance(cond, BinOp) and cond.op in ("<", "<=") and var not in variables(cond.rhs):
            step = coefficient(cond.lhs, var)
            if inner[var] and step is not None and step >= 0:
                cond = substitute(cond, {var: const(0)})
    return cond


def _is_empty(buffer: AnyBuffer) -> bool:
    sizes = [simplify(size) for size in getattr(buffer, "shape", ())]
    return any(isinstance(size, Const) and size.value == 0 for size in sizes)


def _reads_itself(store: Store) -> bool:
    loads = (n for n in walk(store.value) if isinstance(n, Load) and n.buffer is store.buffer)
    return any(expr_equal(load.indices[0], store.indices[0]) for load in loads)


def _reach(index: Expr, lets: dict[Var, Expr]) -> frozenset[Var]:
    """Return the variables that *index* depends on, also through *lets*."""
    result, pending = set(variables(index)), list(variables(index))
    while pending:
        value = lets.get(pending.pop())
        if value is not None:
            new = variables(value) - result
            result |= new
            pending += new
    return frozenset(result)


def _around(stmt: Node, inner: Stmt) -> list[Node] | None:
    """Return the statements from *stmt* inwards to *inner*, without it; None if it is not there.

    A condition is there negated if *inner* is what is done otherwise.
    """
    if stmt is inner:
        return []
    parts: tuple[tuple[Node, Node], ...]
    if isinstance(stmt, If) and stmt.otherwise is not None:
        parts = ((stmt, stmt.then), (If(UnOp("not", stmt.cond), seq()), stmt.otherwise))
    else:
        parts = tuple((stmt, child) for child in children(stmt))
    for around, child in parts:
        path = _around(child, inner)
        if path is not None:
            return [around, *path]
    return None


class _Swap(Rewriter):
    """Puts one statement in the place of another."""

    def __init__(self, old: Stmt, new: Stmt) -> None:
        self.old, self.new = old, new

    def visit(self, node: Node) -> Node:
        """Stop at the statement to replace."""
        return self.new if node is self.old else super().visit(node)
