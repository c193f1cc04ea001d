"""III to III: vectorized loops become explicit vectors, and a scalar loop for the remainder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from spcomp.dtypes import DType, bool_, int32, int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Combiner, as_reduction, identity
from spcomp.ir.analysis.vectors import (
    REDUCIBLE,
    adds_local,
    can_vectorize,
    gathers,
    lane_bits,
)
from spcomp.ir.arith.simplify import Interval, coefficient, simplify
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import (
    BinOp,
    BinOpKind,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    Select,
    Var,
    binary,
    cast,
    const,
)
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Prefetch, Stmt, Store, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.flat.unswitch import NamedReads, unswitch

Bounds: TypeAlias = Mapping[Var, Interval]
Nest: TypeAlias = tuple[For, ...]


@dataclass(frozen=True, slots=True)
class LoopKinds(FuncPass):
    """``for k in vectorized(n): s  ->  for k in n // w: s[k := ramp(k * w, 1, w)]; rest serial``.

    A loop that only updates one element (a dot product) accumulates in a vector. *vector_bits* is
    the width of the target's registers; below two lanes the loop stays serial.
    """

    name: ClassVar[str] = "loop_kinds"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT
    knobs: Knobs = field(repr=False)
    vector_bits: int = 0

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with explicit vectors."""
        body = _Vectorizer(Names(func), self.knobs, self.vector_bits).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Vectorizer(Rewriter):
    def __init__(self, names: Names, knobs: Knobs, vector_bits: int) -> None:
        self.names, self.knobs, self.vector_bits = names, knobs, vector_bits
        self.bounds: dict[Var, Interval] = {}
        self.data: set[Var] = set()  # variables whose values depend on data

    def visit_Let(self, let: Let) -> Node:
        if self._is_data(let.value):
            self.data.add(let.var)
        return self.visit_Node(let)

    def _is_data(self, value: Expr) -> bool:
        return any(isinstance(n, (Load, Search)) or n in self.data for n in walk(value))

    def _is_ragged(self, loop: For) -> bool:
        """Whether the trip count of *loop* depends on data, as along a fiber."""
        return self._is_data(loop.begin) or self._is_data(loop.end)

    def visit_For(self, loop: For) -> Node:
        if isinstance(loop.begin, Const) and isinstance(loop.end, Const):
            first, last = int(loop.begin.value), int(loop.end.value) - 1
            self.bounds[loop.var] = Interval(first, max(first, last))
        new = self.visit_Node(loop)
        assert isinstance(new, For)
        if new.kind == "parallel":
            return new
        cond, new = unswitch(new)
        stmt = self._vectors(new) if new.kind == "vectorized" else new
        return stmt if cond is None else If(cond, stmt, span=loop.span)

    def _vectors(self, loop: For) -> Stmt:
        """Return the vectorized *loop* in vectors, or serial where it cannot be."""
        lanes = self._lanes(loop)
        nest, store = _reduction_nest(loop)
        if lanes >= 2 and store is not None and can_vectorize(store, loop.var):
            return self._reduce(loop, nest, store, lanes)
        if lanes < 2 or not can_vectorize(loop.body, loop.var):
            return loop.replace(kind="serial")
        if not all(_depends(n, loop.var) for n in walk(loop.body) if isinstance(n, Store)):
            # lanes would write one element: a dot product under a condition
            return loop.replace(kind="serial")
        most = self.knobs.unrolled_vectors
        if (pieces := _pieces(loop, lanes, most, self.bounds)) is not None:
            vectors = (_Widen(loop, const(at), width, self.bounds) for at, width in pieces)
            return seq(*(vector.vector() for vector in vectors))
        return seq(*self._split(loop, lanes, lambda k: seq(_Widen(loop, k, lanes).vector())))

    def _lanes(self, loop: For) -> int:
        """Return the lanes of a register; fewer if the trips are a smaller power of two."""
        dtypes = [n.buffer.dtype for n in walk(loop.body) if isinstance(n, (Load, Store))]
        lanes = self.vector_bits // max((lane_bits(t) for t in dtypes), default=64)
        short = gathers(loop) or (self._is_ragged(loop) and not self._masks(loop))
        if self.vector_bits < self.knobs.gather_bits and short:
            lanes = min(lanes, self.knobs.short_lanes)
        if not from_zero(loop) or not isinstance(loop.end, Const) or loop.end.value >= lanes:
            return lanes
        return int(loop.end.value) if int(loop.end.value).bit_count() == 1 else 0

    def _masks(self, loop: For) -> bool:
        """Whether the remainder of the dot product *loop* is one more vector, under a mask.

        That is so if its length depends on data: a processor could not predict the end of a loop.
        """
        loads = [n for n in walk(loop.body) if isinstance(n, Load)]
        lane_loads = [n for n in loads if loop.var in variables(n)]
        narrow = any(n.buffer.dtype.itemsize < int32.itemsize for n in lane_loads)
        nest, store = _reduction_nest(loop)
        if store is None or isinstance(loop.end, Const) or narrow:
            return False
        bound_loads = {fingerprint(n) for n in walk(loop.end) if isinstance(n, Load)}
        bound_loads.add(fingerprint(Load(store.buffer, store.indices)))
        safe = bool(nest) or all(n in lane_loads or fingerprint(n) in bound_loads for n in loads)
        return safe and not gathers(loop) and self.vector_bits >= self.knobs.mask_bits

    def _split(self, loop: For, lanes: int, body: Callable[[Expr], Stmt]) -> tuple[For, For]:
        """Return the vector loop and the loop over the remainder."""
        vectors = binary("//", _length(loop), lanes)
        k = self.names.var(f"{loop.var.name}_v")
        base = binary("+", loop.begin, binary("*", k, lanes))
        trips = simplify(vectors)
        few = isinstance(trips, Const) and trips.value <= self.knobs.unrolled_vectors
        main = For(k, ZERO, trips, body(base), "unroll" if few else "serial", span=loop.span)
        index = self.names.var(loop.var.name)
        # not before the first iteration if the loop ends before it begins
        covered = simplify(binary("max", binary("*", vectors, lanes), 0))
        start = binary("+", loop.begin, covered)
        tail = For(index, start, loop.end, substitute(loop.body, {loop.var: index}), span=loop.span)
        return main, tail

    def _reduce(self, loop: For, nest: Nest, store: Store, lanes: int) -> Stmt:
        reduction = as_reduction(store)
        if reduction is None or reduction.combiner not in REDUCIBLE or len(reduction.values) != 1:
            return loop.replace(kind="serial")
        op, dtype = reduction.combiner, store.buffer.dtype
        is_short = gathers(loop) or self._is_ragged(loop)
        count = 1 if is_short else self.knobs.dot_accumulators
        size = const(count * lanes)
        name = store.buffer.name
        acc = Buffer(self.names.unique(f"{name}_acc"), None, (size,), dtype, "local")
        sum_ = Buffer(self.names.unique(f"{name}_sum"), None, (const(1),), dtype, "local")
        so_far = Load(sum_, (ZERO,))
        scalar_step = Store(sum_, (ZERO,), BinOp(op, so_far, cast(reduction.value, dtype)))

        def at(k: int) -> tuple[Expr, ...]:
            return (Ramp(const(k * lanes), 1, lanes),)

        def inside(stmt: Stmt) -> Stmt:
            return _inside(nest, self.names, stmt)

        def update(k: int, base: Expr) -> Stmt:
            value = cast_lanes(_Widen(loop, base, lanes).rewrite(reduction.value), dtype)
            step = Store(acc, at(k), BinOp(op, Load(acc, at(k)), _wide(value, lanes)))
            return inside(NamedReads(self.names, value).name(step))

        def update_all(base: Expr) -> Stmt:
            return seq(*(update(k, plus(base, k * lanes)) for k in range(count)))

        # 0 would do, but adding the first term to -0 needs no instruction
        apart = const(-0.0, dtype) if op == "+" and dtype.is_float else identity(op, dtype)
        nothing = Broadcast(identity(op, dtype) if count == 1 else apart, lanes)
        start = [Store(acc, at(k), nothing) for k in range(count)]
        start.append(Store(acc, (ZERO,), Load(store.buffer, store.indices)))  # the sum so far
        main, tail = self._split(loop.replace(body=inside(scalar_step)), count * lanes, update_all)
        remainder: Stmt | None = None
        if count > 1:
            remainder, tail = self._split(tail, lanes, lambda base: update(0, base))
        last: Stmt | None = tail
        if self._masks(loop):
            last_loop = tail.replace(var=loop.var, body=loop.body)
            masked = _LastLanes(last_loop, lanes, self.names).reduce(
                reduction.value, acc, op, inside
            )
            if nest:  # elements read for all lanes are sure to exist only if a lane runs
                masked = If(BinOp("<", last_loop.begin, last_loop.end), masked)
            remainder, last = seq(remainder, masked), None
        partial = _combined(op, [Load(acc, at(k)) for k in range(count)])
        total: Stmt = Store(sum_, (ZERO,), Reduce(op, partial))
        finish = store.replace(value=so_far)
        ragged = self._is_ragged(loop)
        whole: Stmt = seq(*start, main, remainder, total, last)
        if ragged and last is not None:  # a fiber that fills no vector is added up as it is
            first = Store(sum_, (ZERO,), Load(store.buffer, store.indices))
            short = seq(first, self._one_by_one(loop, inside(scalar_step)))
            whole = If(BinOp("<=", const(lanes, int64), _length(loop)), whole, short)
        body = seq(whole, finish)
        result: Stmt = Alloc(acc, Alloc(sum_, body), span=loop.span)
        return self._along_fiber(loop, result) if ragged and not adds_local(loop) else result

    def _one_by_one(self, loop: For, step: Stmt) -> For:
        """Return *step* in a serial copy of *loop*."""
        index = self.names.var(loop.var.name)
        return loop.replace(var=index, body=substitute(step, {loop.var: index}), kind="serial")

    def _along_fiber(self, loop: For, dot: Stmt) -> Stmt:
        """Return *dot*, the vectorized *loop*, for fibers with elements, after its prefetches."""
        ahead = _streams(loop, self.knobs.stream_ahead) if gathers(loop) else ()
        return If(BinOp("<", loop.begin, loop.end), seq(*ahead, dot))


def _combined(op: Combiner, partial: list[Expr]) -> Expr:
    """Return the values *partial*, a power of two of them, combined in pairs."""
    while len(partial) > 1:
        partial = [BinOp(op, a, b) for a, b in zip(partial[::2], partial[1::2], strict=True)]
    return partial[0]


def _length(loop: For) -> Expr:
    """Return how many iterations *loop* has; less than one if none."""
    return loop.end if from_zero(loop) else binary("-", loop.end, loop.begin)


def _streams(loop: For, ahead: int) -> Iterator[Stmt]:
    """Yield prefetches of what *loop* reads in order, *ahead* elements after its begin.

    Fibers follow each other in memory. Where they are short, a processor that is busy with the
    ends of loops does not run far enough ahead by itself.
    """
    seen: set[Buffer] = set()
    for load in (n for n in walk(loop.body) if isinstance(n, Load)):
        (index,), buffer = load.indices, load.buffer
        if index is None or buffer in seen or not isinstance(buffer, Buffer):
            continue
        inner = any(isinstance(n, Load) and loop.var in variables(n) for n in walk(index))
        if buffer.data is not None and not inner and coefficient(index, loop.var) == 1:
            seen.add(buffer)
            at = plus(substitute(index, {loop.var: loop.begin}), ahead)
            yield Prefetch(buffer, (at,))  # maybe beyond the end, which a hint may be


def _reduction_nest(loop: For) -> tuple[Nest, Store | None]:
    """Return the store if *loop* only updates one element, and the loops inside it around that.

    These have the same bounds in all iterations. No loops and None if *loop* does more.
    """
    nest: list[For] = []
    body = loop.body
    while isinstance(body, For) and body.kind == "serial":
        nest.append(body)
        body = body.body
    if not isinstance(body, Store) or any(_depends(body, x.var) for x in (loop, *nest)):
        return (), None
    bounds = [n for x in nest for end in (x.begin, x.end) for n in walk(end)]
    if any(n is loop.var or isinstance(n, (Load, Search)) for n in bounds):
        return (), None
    return tuple(nest), body


def _inside(nest: Nest, names: Names, stmt: Stmt) -> Stmt:
    """Return *stmt* in copies of the loops of *nest*."""
    for loop in reversed(nest):
        var = names.var(loop.var.name)
        stmt = loop.replace(var=var, body=substitute(stmt, {loop.var: var}))
    return stmt


def _pieces(loop: For, lanes: int, most: int, bounds: Bounds) -> list[tuple[int, int]] | None:
    """Return the starts and widths of vectors for a masked loop of few constant trips.

    None for any other loop, and for one of more than *most* vectors.

    If the mask is known to hold only for the first lanes of a vector, it is shortened to these if
    they are a power of two, and split into powers of two if it writes to memory: masked loads are
    fast, masked stores slow.
    """
    if not isinstance(loop.body, If) or not from_zero(loop) or not isinstance(loop.end, Const):
        return None
    if loop.end.value % lanes or loop.end.value > most * lanes:
        return None
    pieces: list[tuple[int, int]] = []
    for at in range(0, int(loop.end.value), lanes):
        count = _active_lanes(loop, at, lanes, bounds)
        if count == lanes or not (count.bit_count() == 1 or _writes(loop.body)):
            pieces.append((at, lanes))
            continue
        for width in (1 << bit for bit in reversed(range(count.bit_length()))):
            if count & width:
                pieces.append((at, width))
                at += width
    return pieces


def _active_lanes(loop: For, at: int, lanes: int, bounds: Bounds) -> int:
    """Return the number of first lanes for which alone the condition holds; all if not known."""
    if _holds(loop, at, at + lanes - 1, bounds):
        return lanes
    for lane in range(lanes):
        if not (holds := _holds(loop, at + lane, at + lane, bounds)):
            never = holds is False and _holds(loop, at + lane, at + lanes - 1, bounds) is False
            return lane if never else lanes
    return lanes


def _holds(loop: For, first: int, last: int, bounds: Bounds) -> bool | None:
    """Whether the condition around the body holds for ``first..last``; None if not known."""
    assert isinstance(loop.body, If)
    cond = simplify(loop.body.cond, {**bounds, loop.var: Interval(first, last)})
    return bool(cond.value) if isinstance(cond, Const) else None


def _writes(body: Stmt) -> bool:
    """Whether *body* stores to the memory of a parameter."""
    return any(isinstance(n, Store) and n.buffer.data is not None for n in walk(body))


def _depends(store: Store, var: Var) -> bool:
    return any(var in variables(i) for i in store.indices if i is not None)


def cast_lanes(value: Expr, dtype: DType) -> Expr:
    """Return *value* cast to elements of *dtype*, with the same lanes."""
    return cast(value, dtype.with_lanes(value.dtype.lanes))


def _wide(value: Expr, lanes: int) -> Expr:
    return value if value.dtype.lanes == lanes else Broadcast(value, lanes)


class _Widen(Rewriter):
    """Replaces a scalar index by the vector of *lanes* indices from *base* on."""

    def __init__(
        self,
        loop: For,
        base: Expr,
        lanes: int,
        bounds: Bounds | None = None,
        mask: Expr | None = None,
    ) -> None:
        self.bounds: Bounds = bounds or {}
        self.loop, self.var, self.end = loop, loop.var, loop.end
        self.base, self.lanes, self.mask = base, lanes, mask

    def vector(self) -> Stmt | None:
        """Return the body of the loop for the vector; None if no lane of it runs."""
        body = self.loop.body
        if isinstance(body, If):
            holds = None
            if isinstance(self.base, Const):
                first = int(self.base.value)
                holds = _holds(self.loop, first, first + self.lanes - 1, self.bounds)
            if holds is False:
                return None
            if holds is None:
                self.mask = _wide(self.rewrite(body.cond), self.lanes)
                if self._may_miss(body):
                    return If(Reduce("max", self.mask), self.rewrite(body.then))
            body = body.then
        return self.rewrite(body)

    def _may_miss(self, body: If) -> bool:
        """Whether elements that *body* reads for all lanes may only exist if a lane runs."""
        loads = [variables(n) for n in walk(body.then) if isinstance(n, Load)]
        return any(self.var not in names and names & variables(body.cond) for names in loads)

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        if new is load or self._is_tile(load):
            return new
        return new.replace(mask=self.mask)

    def _is_tile(self, access: Load | Store) -> bool:
        """Whether every lane of *access* lies in a local buffer as long as the loop."""
        buffer = access.buffer
        inside = (
            buffer.data is None and isinstance(buffer, Buffer) and access.indices == (self.var,)
        )
        return inside and isinstance(buffer, Buffer) and _same(buffer.shape[0], self.end)

    def visit_Var(self, var: Var) -> Node:
        if var is not self.var:
            return var
        return Ramp(self.base, 1, self.lanes) if self.lanes > 1 else self.base

    def visit_BinOp(self, op: BinOp) -> Node:
        lhs, rhs = self.rewrite(op.lhs), self.rewrite(op.rhs)
        if lhs is op.lhs and rhs is op.rhs:
            return op
        if (ramp := _ramp(op.op, lhs, rhs)) is not None:
            return ramp
        return op.replace(lhs=_wide(lhs, self.lanes), rhs=_wide(rhs, self.lanes))

    def visit_Cast(self, node: Cast) -> Node:
        value = self.rewrite(node.value)
        if value is node.value:
            return node
        if isinstance(value, Ramp) and node.type == int64:
            return Ramp(cast(value.base, int64), value.stride, value.lanes)
        return Cast(value, node.type.with_lanes(self.lanes), span=node.span)

    def visit_Call(self, call: Call) -> Node:
        args = tuple(self.rewrite(a) for a in call.args)
        if all(a is b for a, b in zip(args, call.args, strict=True)):
            return call
        return call.replace(args=tuple(_wide(a, self.lanes) for a in args))

    def visit_Select(self, select: Select) -> Node:
        parts = [self.rewrite(p) for p in (select.cond, select.then, select.otherwise)]
        if parts == [select.cond, select.then, select.otherwise]:
            return select
        cond, then, otherwise = (_wide(p, self.lanes) for p in parts)
        if parts[0] is select.cond:  # a scalar for all lanes: only one side is evaluated
            cond = select.cond
        return Select(cond, then, otherwise, span=select.span)

    def visit_Store(self, store: Store) -> Node:
        indices = tuple(_wide(self.rewrite(i), self.lanes) for i in store.indices if i is not None)
        value = _wide(self.rewrite(store.value), self.lanes)
        if self.mask is not None and self._is_tile(store):  # blended, so that it stays in registers
            value = Select(self.mask, value, Load(store.buffer, indices))
            return store.replace(indices=indices, value=value)
        return store.replace(indices=indices, value=value, mask=self.mask)


class _LastLanes(_Widen):
    """Runs the last iterations of *loop*, fewer than *lanes*, as some lanes of a vector.

    Its reads are bound to variables, so that they are vector loads under the mask, not loads of
    each lane in one side of a select.
    """

    def __init__(self, loop: For, lanes: int, names: Names) -> None:
        self.names, self.runs = names, names.var(f"{loop.var.name}_runs", bool_.with_lanes(lanes))
        super().__init__(loop, loop.begin, lanes, mask=self.runs)

    def reduce(
        self, value: Expr, acc: Buffer, op: Combiner, inside: Callable[[Stmt], Stmt]
    ) -> Stmt:
        """Return the statement that combines *value*, in the lanes that run, with *acc*.

        *inside* puts a statement into the loops around *value*.
        """
        at = (Ramp(ZERO, 1, self.lanes),)
        terms = _wide(cast_lanes(self.rewrite(value), acc.dtype), self.lanes)
        term = self.names.var(f"{self.var.name}_term", terms.dtype)
        masked = Select(self.runs, term, Broadcast(identity(op, acc.dtype), self.lanes))
        stmt = Store(acc, at, BinOp(op, Load(acc, at), masked))
        count = cast(binary("max", binary("-", self.end, self.base), 0), int32)
        runs = BinOp("<", Ramp(const(0, int32), 1, self.lanes), Broadcast(count, self.lanes))
        return Let(self.runs, runs, inside(Let(term, terms, stmt)))


def _same(a: Expr, b: Expr) -> bool:
    return isinstance(a, Const) and isinstance(b, Const) and a.value == b.value


def _ramp(op: BinOpKind, lhs: Expr, rhs: Expr) -> Ramp | None:
    """Return ``lhs op rhs`` as a ramp; None if it is not one."""
    match op, lhs, rhs:
        case (("+" | "-"), Ramp(), _) if rhs.dtype.lanes == 1:
            return lhs.replace(base=binary(op, lhs.base, rhs))
        case "+", _, Ramp() if lhs.dtype.lanes == 1:
            return rhs.replace(base=binary("+", lhs, rhs.base))
        case "*", Ramp(), Const(value=int(factor)):
            return Ramp(binary("*", lhs.base, rhs), lhs.stride * factor, lhs.lanes)
        case "*", Const(value=int(factor)), Ramp():
            return Ramp(binary("*", lhs, rhs.base), rhs.stride * factor, rhs.lanes)
    return None
