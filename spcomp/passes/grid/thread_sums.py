"""Beside the passes for GPUs: what threads add up, and sums that share the exchanges of lanes.

Lanes exchange one value at a time. To add up two sums, each lane gives away its part of one and
keeps the other: after that, every second lane has the same sum, and one exchange did for both. So
four sums of eight lanes take four exchanges and not twelve, in the same order of additions.
"""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import from_zero, trip_count, uncast, variables
from spcomp.ir.analysis.grid import THREADS
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Reduction, as_reduction
from spcomp.ir.arith.memory import are_constant, read_by, reads_of
from spcomp.ir.arith.simplify import coefficient, simplify
from spcomp.ir.axis import WARP, AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, const
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import WARPS, Alloc, For, If, Let, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import statements, walk
from spcomp.knobs import GridKnobs

_PLAIN = Alloc | For | Let | Seq | Store


@dataclass(frozen=True, slots=True)
class Sums:
    """The unrolled *loop*, whose trips do *work* and add up over *lanes*, *count* together.

    *store* is the update that lanes share, *reduction* what it computes, *start* the store of its
    neutral element before it. A trip takes place where *cond* holds, which it does up to a number
    of trips (None: all take place). *allocs* are around what a trip does.
    """

    loop: For
    count: int
    cond: Expr | None
    allocs: tuple[Alloc, ...]
    work: tuple[Stmt, ...]
    start: Store | None
    lanes: For
    store: Store
    reduction: Reduction

    @property
    def is_open(self) -> bool:
        """Whether nobody knows how many trips there are: they come in groups of *count*."""
        return trip_count(self.loop) is None

    @property
    def size(self) -> int:
        """How many lanes add up."""
        return trip_count(self.lanes) or 0

    @property
    def all_run(self) -> Expr:
        """Whether all trips take place."""
        assert self.cond is not None
        return simplify(substitute(self.cond, {self.loop.var: const(self.count - 1)}))

    def trip(self, own: Stmt) -> Stmt:
        """Return what a trip does, with *own* in the place of what lanes add up."""
        result = seq(*self.work, own)
        for alloc in reversed(self.allocs):
            result = alloc.replace(body=result)
        return result


def sums_of(loop: For, knobs: GridKnobs) -> Sums | None:
    """Return the sums of *loop*, None unless lanes can add them up together.

    The trips have an element each, which nothing else in them reads.
    """
    trips = trip_count(loop)
    count = knobs.open_sums if trips is None else trips
    if count not in WARPS or count > knobs.joint_sums:
        return None
    if loop.kind != "unroll" or not from_zero(loop):
        return None
    cond, allocs, body = None, list[Alloc](), loop.body
    if isinstance(body, If):
        if trips is None or not _is_bound(body, loop.var):
            return None
        cond, body = body.cond, body.then
    while isinstance(body, Alloc):
        allocs.append(body)
        body = body.body
    *work, lanes = body.body if isinstance(body, Seq) and body.body else (body,)
    if not isinstance(lanes, For) or lanes.thread != THREADS[0]:
        return None
    store = shared_update(lanes)
    reduction = None if store is None else as_reduction(store)
    if store is None or reduction is None or reduction.is_tuple or reduction.combiner != "+":
        return None
    start = work.pop() if work and is_start(work[-1], lanes) else None
    assert start is None or isinstance(start, Store)
    found = Sums(loop, count, cond, tuple(allocs), tuple(work), start, lanes, store, reduction)
    return found if count <= found.size and _are_apart(found) else None


def _is_bound(branch: If, var: Var) -> bool:
    """Whether the condition of *branch* holds for values of *var* below some, and stays so."""
    cond = branch.cond
    if branch.otherwise is not None or not isinstance(cond, BinOp) or cond.op != "<":
        return False
    step = coefficient(cond.lhs, var)
    rises = step is not None and step > 0 and var not in variables(cond.rhs)
    return rises and are_constant((cond,), branch.then)


def _are_apart(sums: Sums) -> bool:
    """Whether a trip may do its work before earlier ones have added up, and has its own element."""
    body = sums.trip(sums.lanes)
    if not all(isinstance(node, _PLAIN | If) for node in statements(body)):
        return False
    target, own = memory_of(sums.store.buffer), {x.buffer for x in sums.allocs}
    if target in reads_of(sums.loop.end):
        return False
    own |= {n.buffer for n in statements(body) if isinstance(n, Alloc)}
    of_all = sums.store.buffer.scope in ("global", "shared")  # else each thread needs all sums
    if not of_all or sums.store.buffer in own or any(x.scope != "local" for x in own):
        return False
    stores = [n for n in statements(body) if isinstance(n, Store)]
    if any(n.buffer not in own and n is not sums.store for n in stores):
        return False
    index = sums.store.indices[0]
    loads = (n for n in walk(body) if isinstance(n, Load) and memory_of(n.buffer) is target)
    if index is None or not all(expr_equal(n.indices[0], index) for n in loads):
        return False
    step = coefficient(index, sums.loop.var)
    return step is not None and step != 0


def joint_exchanges(
    partials: list[Buffer], sums: Sums, names: Names
) -> tuple[list[Stmt], list[Buffer]]:
    """Return the steps after which each lane has one of the sums, and their buffers, that last.

    *partials* are those of the trips. The sum of lane number i is that of trip i % count.
    """
    steps, buffers, distance = list[Stmt](), list[Buffer](), 1
    shape, dtype = partials[0].shape, partials[0].dtype
    while len(partials) > 1:
        after = list[Buffer]()
        for even, odd in zip(partials[::2], partials[1::2], strict=True):
            given, kept = (
                Buffer(names.unique("partial"), None, shape, dtype, WARP) for _ in range(2)
            )
            for which, (one, other) in ((given, (even, odd)), (kept, (odd, even))):
                lane = names.var(sums.lanes.var.name)
                is_odd = BinOp("!=", binary("&", lane, distance), const(0))
                value: Expr = Select(is_odd, Load(one, (lane,)), Load(other, (lane,)))
                if which is kept:
                    there = Load(given, (binary("^", lane, distance),))
                    value = binary("+", value, there)
                store = Store(which, (lane,), value, span=sums.lanes.span)
                steps.append(on_threads(sums.lanes, lane, sums.size, store))
            buffers += [given, kept]
            after.append(kept)
        partials, distance = after, distance * 2
    return steps, buffers


def is_start(before: Stmt | None, threads: For) -> bool:
    """Whether *before* stores the neutral element to the one that *threads* update."""
    if not isinstance(before, Store):
        return False
    store = shared_update(threads)
    reduction = None if store is None else as_reduction(store)
    if store is None or reduction is None or before.buffer is not store.buffer:
        return False
    same = expr_equal(before.indices[0], store.indices[0]) and before.mask is None
    start = uncast(before.value)
    return same and isinstance(start, Const) and start.value == reduction.identity[0].value


def on_threads(loop: For, var: Var, size: int, body: Stmt) -> For:
    """Return a loop over the first *size* threads of *loop*."""
    return For(var, const(0), const(size), body, "bound", loop.thread, span=loop.span)


def shared_update(loop: For) -> Store | None:
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


def repeated_update(loop: For) -> For | None:
    """Return the loop over threads by whose trips *loop* updates one element, again and again.

    None if there is none, or *loop* does anything else.
    """
    inner: Stmt = loop
    while not isinstance(inner, For) or not inner.thread.startswith("threadIdx"):
        match inner:
            case For(kind="serial" | "unroll", body=body) | Seq(body=(body,)):
                inner = body
            case If(then=then, otherwise=None):
                inner = then
            case _:
                return None
    store = shared_update(inner)
    nodes = list(statements(loop.body))
    if store is None or not all(isinstance(node, _PLAIN | If) for node in nodes):
        return None
    own = {node.buffer for node in statements(inner.body) if isinstance(node, Alloc)}
    others = [n for n in nodes if isinstance(n, Store) and n is not store and n.buffer not in own]
    target = memory_of(store.buffer)
    loads = [n for n in walk(loop) if isinstance(n, Load) and memory_of(n.buffer) is target]
    index, changing = store.indices[0], {n.var for n in (loop, *nodes) if isinstance(n, For | Let)}
    fixed = index is not None and not variables(index) & changing and own.isdisjoint(read_by(index))
    return inner if fixed and len(loads) == 1 and not others and not store.atomic else None


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
