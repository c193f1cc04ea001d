"""III to III: a reduction over threads combines their partial results, in warps by shuffles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import conjuncts, from_zero, plus, trip_count, variables
from spcomp.ir.analysis.grid import THREADS, not_constant
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import (
    EAGER,
    Reduction,
    accumulator,
    as_reduction,
    combine,
    identity,
)
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import coefficient
from spcomp.ir.axis import WARP, AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Expr, UnOp, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import MOST_TRIPS, WARPS, Alloc, For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import children, statements
from spcomp.knobs import GridKnobs
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.grid.thread_sums import (
    Sums,
    is_start,
    joint_exchanges,
    on_threads,
    repeated_update,
    shared_update,
    sums_of,
)


@dataclass(frozen=True, slots=True)
class ReduceThreads(FuncPass):
    """``for t in threads: c[0] = c[0] + x[t]  ->  p[t] = x[t]; tree over p; c[0] = c[0] + p[0]``.

    In groups of 2 to 32 neighbouring threads, each adds what its partner at distance 1, 2, 4, ...
    has (a butterfly); other groups add halves in shared memory. Both orders depend on the number
    of threads only, so the same inputs give the same bits. Trips of an unrolled loop that each add
    up over such a group share exchanges, as :mod:`thread_sums` says.
    """

    name: ClassVar[str] = "reduce_threads"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT
    knobs: GridKnobs = field(repr=False)

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* without loops over threads that update one element."""
        func = func.replace(body=_NoEmptyLoops().rewrite(func.body))
        body = _Reducer(func, self.knobs).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _NoEmptyLoops(Rewriter):
    """Drops loops without iterations, lest what they would add up is added behind them."""

    def visit_For(self, loop: For) -> Node:
        return Seq(()) if trip_count(loop) == 0 else self.visit_Node(loop)


class _Reducer(Rewriter):
    def __init__(self, func: FlatFunc, knobs: GridKnobs) -> None:
        self.names, self.knobs = Names(func), knobs
        loops = [n for n in statements(func.body) if isinstance(n, For) and n.thread in THREADS]
        self.wide = max((trip_count(x) or 1 for x in loops if x.thread == THREADS[0]), default=1)
        self.is_row = all(trip_count(x) == 1 for x in loops if x.thread != THREADS[0])
        self.alias = func.attr("tir.noalias", default=True) is False
        self.neutral: Store | None = None  # what stands before the statement: it stores the start

    def visit_Seq(self, stmts: Seq) -> Node:
        """Leave out a store of the neutral element before the reduction that starts from it."""
        result: list[Stmt] = []
        for before, stmt in zip((None, *stmts.body), stmts.body, strict=False):
            threads = self._threads(stmt) if isinstance(stmt, For) else None
            if threads is not None and is_start(before, threads):
                assert isinstance(before, Store)
                self.neutral = before
                result.pop()
            result.append(self.rewrite(stmt))
            self.neutral = None
        return seq(*result)

    def visit_For(self, loop: For) -> Node:
        joint = None if self.alias else sums_of(loop, self.knobs)
        if joint is not None and self._are_lanes(joint.lanes, joint.size):
            return self._joint(joint)
        threads = self._threads(loop)
        store = None if threads is None else shared_update(threads)
        if threads is None or store is None:
            return self.visit_Node(loop)
        if trip_count(threads) is None:
            raise not_constant(threads)
        reduction = as_reduction(store)
        if reduction is None or reduction.is_tuple:
            raise LoweringError(
                f"threads of {threads.var.name} write one element of {store.buffer.name}",
                store.span or threads.span,
                hint="threads share an element only in a sum, product, minimum or maximum",
            )
        return self._tree(loop, threads, store, reduction)

    def _threads(self, loop: For) -> For | None:
        """Return *loop* if it is over threads, or the one by which it updates one element."""
        if loop.thread.startswith("threadIdx"):
            return loop
        return None if self.alias else repeated_update(loop)

    def _tree(self, nest: For, loop: For, store: Store, reduction: Reduction) -> Stmt:
        """Return *nest* with a partial result for each thread of *loop*, which are then combined.

        That is *nest*, or inside it: a thread then has added up what it has of all trips.
        """
        neutral, self.neutral = self.neutral, None
        size = trip_count(loop) or 0
        scope = WARP if self._are_lanes(loop, size) else "shared"
        partial = self._partial(size, reduction, scope)
        own: Stmt
        if nest is loop:
            own = self.rewrite(_on_partial(loop, store, reduction, partial))
        else:
            own = self._over_trips(nest, loop, store, reduction, partial)
        if scope == WARP:
            stages, last = self._butterfly(loop, partial, reduction)
        else:
            stages, last = self._halves(loop, partial, reduction)
        total = Load(last[-1], (const(0),))
        final = self._final(nest, store, reduction, total, replaces=neutral is not None)
        return _allocated(last, seq(own, *stages, final), loop)

    def _over_trips(
        self, nest: For, loop: For, store: Store, reduction: Reduction, partial: Buffer
    ) -> Stmt:
        """Return *nest*, after which each thread of *loop*, in it, has its part in *partial*."""
        size = trip_count(loop) or 0
        total = self._partial(size, reduction, "local")
        first, last = self.names.var(loop.var.name), self.names.var(loop.var.name)
        neutral = identity(reduction.combiner, total.dtype)
        start = Store(total, (first,), neutral, span=store.span)
        added = _on_partial(loop, store, reduction, total, starts=False)
        result = Store(partial, (last,), Load(total, (last,)), span=store.span)
        own = seq(
            on_threads(loop, first, size, start),
            self.rewrite(Replace(loop, added).rewrite(nest)),
            on_threads(loop, last, size, result),
        )
        return Alloc(total, own, span=loop.span)

    def _joint(self, sums: Sums) -> Stmt:
        """Return the loop of *sums* with exchanges that its trips share."""
        loop, count = sums.loop, const(sums.count)
        rolled = loop.replace(attrs=((MOST_TRIPS, 1),))
        if sums.is_open:
            group = self.names.var(loop.var.name)
            groups = BinOp("max", binary("//", loop.end, count), const(0))
            work = self._together(sums, binary("*", group, count))
            rest = rolled.replace(begin=binary("*", groups, count), kind="serial")
            together = rest.replace(var=group, begin=const(0), end=groups, body=work)
            return seq(together, self._alone(rest))
        whole = self._together(sums, const(0))
        if sums.cond is None:
            return whole
        return If(sums.all_run, whole, self._alone(rolled), uniform=True, span=loop.span)

    def _alone(self, loop: For) -> Stmt:
        """Return *loop*, each of whose trips adds up by itself."""
        new = self.visit_Node(loop)
        assert isinstance(new, Stmt)
        return new

    def _together(self, sums: Sums, first: Expr) -> Stmt:
        """Return the trips of *sums* from *first* on, as many as share exchanges."""
        loop, lanes = sums.loop, sums.lanes
        trips, partials = list[Stmt](), list[Buffer]()
        for trip in range(sums.count):
            partial = self._partial(sums.size, sums.reduction, WARP)
            own = _on_partial(lanes, sums.store, sums.reduction, partial)
            copy = Fresh(self.names, f"_{trip}", {loop.var: plus(first, trip)})
            trips.append(self.rewrite(copy.rewrite(sums.trip(own))))
            partials.append(partial)
        exchanges, kept = joint_exchanges(partials, sums, self.names)
        stages, last = self._butterfly(lanes, kept[-1], sums.reduction, sums.count)
        lane = self.names.var(lanes.var.name)
        total = Load(last[-1], (lane,))
        final = self._final(
            lanes, sums.store, sums.reduction, total, replaces=sums.start is not None
        )
        final = substitute(final, {loop.var: plus(first, lane)})
        end = on_threads(lanes, lane, sums.count, final)
        buffers = [*partials, *kept[:-1], *last]
        return _allocated(buffers, seq(*trips, *exchanges, *stages, end), lanes)

    def _partial(self, size: int, reduction: Reduction, scope: str) -> Buffer:
        """Return a buffer for the partial results of *size* threads."""
        name, dtype = self.names.unique("partial"), accumulator(reduction.identity[0].dtype)
        return Buffer(name, None, (const(size),), dtype, scope)

    def _final(
        self, loop: For, store: Store, reduction: Reduction, total: Expr, *, replaces: bool
    ) -> Stmt:
        """Return what *loop* leaves in memory: *total*, which *replaces* what was there or not."""
        value = total
        if not replaces:
            old = cast(Load(store.buffer, store.indices), total.dtype)
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
            if not (replaces and isinstance(around, If)):  # the start is stored in any case
                final = self._as_around(around, final, inner)
        return final

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

    def _halves(
        self, loop: For, partial: Buffer, reduction: Reduction
    ) -> tuple[list[Stmt], list[Buffer]]:
        """Return the steps by which threads add halves, and the buffer, which has the result."""
        size, stages = trip_count(loop) or 0, list[Stmt]()
        while size > 1:
            half = (size + 1) // 2
            var = self.names.var(loop.var.name)
            here, there = Load(partial, (var,)), Load(partial, (binary("+", var, half),))
            value = combine(reduction.combiner, here, there)
            add = Store(partial, (var,), value, span=loop.span)
            stages.append(on_threads(loop, var, size - half, add))
            size = half
        return stages, [partial]

    def _butterfly(
        self, loop: For, partial: Buffer, reduction: Reduction, distance: int = 1
    ) -> tuple[list[Stmt], list[Buffer]]:
        """Return the steps by which lanes add, from *distance* on, and the buffers, result last."""
        size, stages, buffers = trip_count(loop) or 0, list[Stmt](), [partial]
        while distance < size:
            after = self._partial(size, reduction, WARP)
            var = self.names.var(loop.var.name)
            there = Load(buffers[-1], (binary("^", var, distance),))
            op = EAGER.get(reduction.combiner, reduction.combiner)
            value = BinOp(op, Load(buffers[-1], (var,)), there)
            stages.append(on_threads(loop, var, size, Store(after, (var,), value, span=loop.span)))
            buffers.append(after)
            distance *= 2
        return stages, buffers


def _on_partial(
    loop: For, store: Store, reduction: Reduction, partial: Buffer, *, starts: bool = True
) -> For:
    """Return *loop*, whose threads each have an element of *partial* in the place of *store*."""
    own = Load(partial, (loop.var,))
    value = combine(reduction.combiner, own, cast(reduction.value, partial.dtype))
    update = Store(partial, (loop.var,), value, span=store.span)
    neutral = identity(reduction.combiner, partial.dtype)
    start = Store(partial, (loop.var,), neutral, span=store.span)
    body = Replace(store, update).rewrite(loop.body)
    return loop.replace(body=seq(start, body) if starts else body)


def _allocated(buffers: list[Buffer], stmt: Stmt, loop: For) -> Stmt:
    """Return *stmt* with the *buffers* that it uses."""
    for buffer in reversed(buffers):
        stmt = Alloc(buffer, stmt, span=loop.span)
    return stmt


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


def _of_any(cond: Expr, inner: dict[Var, bool]) -> Expr:
    """Return whether *cond* holds for any values of *inner*; *cond* where that is unknown."""
    for var in variables(cond) & inner.keys():
        if isinstance(cond, BinOp) and cond.op in ("<", "<=") and var not in variables(cond.rhs):
            step = coefficient(cond.lhs, var)
            if inner[var] and step is not None and step >= 0:
                cond = substitute(cond, {var: const(0)})
    return cond


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
