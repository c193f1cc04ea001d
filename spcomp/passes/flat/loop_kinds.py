"""III to III: vectorized loops become explicit vectors, and a scalar loop for the remainder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import ClassVar, TypeAlias

from spcomp.dtypes import DType, bool_, int32, int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import EAGER, Combiner, accumulator, as_reduction, identity
from spcomp.ir.analysis.vectors import (
    adds_local,
    can_vectorize,
    gathered,
    lane_bits,
)
from spcomp.ir.arith.simplify import Interval, coefficient, simplify
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import (
    BinOp,
    BinOpKind,
    Broadcast,
    Const,
    Expr,
    Ramp,
    Reduce,
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
from spcomp.passes.flat.widen import LastLanes, Widen, cast_lanes, pieces, wide

Nest: TypeAlias = tuple[For, ...]
_ACROSS: dict[Combiner, Combiner] = {"and": "min", "or": "max"}  # lanes of 0 and 1


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
        self.is_inside = False  # a loop
        self.is_grid = False  # whether it is in a loop over blocks or threads
        self.short_lanes = knobs.short_lanes

    def visit_Let(self, let: Let) -> Node:
        if self._is_data(let.value):
            self.data.add(let.var)
        return self.visit_Node(let)

    def _is_data(self, value: Expr) -> bool:
        return any(isinstance(n, Search) or _is_stored(n) or n in self.data for n in walk(value))

    def _is_ragged(self, loop: For) -> bool:
        """Whether the trip count of *loop* depends on data, as along a fiber.

        What a program has counted itself, in local memory, is the length of a whole block.
        """
        return self._is_data(loop.begin) or self._is_data(loop.end)

    def visit_For(self, loop: For) -> Node:
        is_far = None if self.is_inside else self._is_far(loop)
        if is_far is None:
            return self._visit_loop(loop)
        copy = Fresh(self.names, "_far", {}).visit_For(loop)
        assert isinstance(copy, For)
        near = self._visit_loop(loop)
        self.short_lanes = 2 * self.knobs.short_lanes
        far = self._visit_loop(copy)
        self.short_lanes = self.knobs.short_lanes
        return If(is_far, far, near, span=loop.span)

    def _is_far(self, nest: For) -> Expr | None:
        """Return the condition that *nest* gathers from more than the caches near a core hold.

        An instruction that gathers has then more loads in flight than loads one by one. None if
        *nest* does not gather, or not so on the target.
        """
        if not self.knobs.far_bytes:
            return None
        loops = [n for n in walk(nest) if isinstance(n, For) and n.kind == "vectorized"]
        arrays = {b: None for x in loops for b in gathered(x) if isinstance(b, Buffer) and b.data}
        if not arrays:
            return None
        size = reduce(plus, (binary("*", b.shape[0], b.dtype.itemsize) for b in arrays))
        return binary("<=", const(self.knobs.far_bytes, int64), size)

    def _visit_loop(self, loop: For) -> Stmt:
        if isinstance(loop.begin, Const) and isinstance(loop.end, Const):
            first, last = int(loop.begin.value), int(loop.end.value) - 1
            self.bounds[loop.var] = Interval(first, max(first, last))
        around = self.is_inside, self.is_grid
        self.is_inside, self.is_grid = True, self.is_grid or loop.kind == "bound"
        new = self.visit_Node(loop)
        self.is_inside, self.is_grid = around
        assert isinstance(new, For)
        if new.kind == "parallel":
            return new
        cond, new = unswitch(new)
        stmt = self._vectors(new) if new.kind == "vectorized" else new
        return stmt if cond is None else If(cond, stmt, span=loop.span)

    def _vectors(self, loop: For) -> Stmt:
        """Return the vectorized *loop* in vectors, or serial where it cannot be."""
        stores = [n for n in walk(loop.body) if isinstance(n, Store)]
        if self.is_grid and any(store.atomic for store in stores):  # these are one at a time
            return loop.replace(kind="serial")
        lanes = self._lanes(loop)
        nest, store = _reduction_nest(loop)
        if lanes >= 2 and store is not None and can_vectorize(store, loop.var):
            return self._reduce(loop, nest, store, lanes)
        if lanes < 2 or not can_vectorize(loop.body, loop.var):
            return loop.replace(kind="serial")
        if not all(_depends(store, loop.var) for store in stores):
            # lanes would write one element: a dot product under a condition
            return loop.replace(kind="serial")
        most = self.knobs.unrolled_vectors
        if (parts := pieces(loop, lanes, most, self.bounds)) is not None:
            vectors = (Widen(loop, const(at), width, self.bounds) for at, width in parts)
            return seq(*(vector.vector() for vector in vectors))
        whole = self._split(loop, lanes, lambda k: seq(Widen(loop, k, lanes, self.bounds).vector()))
        return seq(*whole)

    def _lanes(self, loop: For) -> int:
        """Return the lanes of a register, fewer if there are fewer trips; 0 if none fit these."""
        lanes = self.vector_bits // _bits(loop)
        short = gathered(loop) or (self._is_ragged(loop) and not self._masks(loop))
        if short and not self.knobs.gathers(self.vector_bits):
            lanes = min(lanes, self.short_lanes)
        if not from_zero(loop) or not isinstance(loop.end, Const) or loop.end.value >= lanes:
            return lanes
        most = 1 << int(loop.end.value).bit_length() >> 1
        is_dot = most >= self.knobs.dot_lanes and _reduction_nest(loop)[1] is not None
        return most if most == loop.end.value or is_dot else 0

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
        others = (n for n in loads if n not in lane_loads and not _is_private(n))
        safe = bool(nest) or all(fingerprint(n) in bound_loads for n in others)
        return safe and not gathered(loop) and self.vector_bits >= self.knobs.mask_bits

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
        if reduction is None or reduction.is_tuple:
            return loop.replace(kind="serial")
        op, dtype = reduction.combiner, self._accumulator(loop, reduction.combiner, store)
        merge = EAGER.get(op, op)
        before = cast(Load(store.buffer, store.indices), dtype)
        is_short = bool(gathered(loop)) or self._is_ragged(loop)
        count = 1 if is_short else self.knobs.dot_accumulators
        acc = self._local(store.buffer, "acc", dtype, count * lanes)
        sum_ = self._local(store.buffer, "sum", dtype, 1)
        so_far = Load(sum_, (ZERO,))
        scalar_step = Store(sum_, (ZERO,), BinOp(merge, so_far, cast(reduction.value, dtype)))

        def at(k: int) -> tuple[Expr, ...]:
            return (Ramp(const(k * lanes), 1, lanes),)

        def inside(stmt: Stmt) -> Stmt:
            return _inside(nest, self.names, stmt)

        def update(k: int, width: int, base: Expr) -> Stmt:
            value = cast_lanes(Widen(loop, base, width).rewrite(reduction.value), dtype)
            part = (Ramp(const(k * lanes), 1, width),)
            step = Store(acc, part, BinOp(merge, Load(acc, part), wide(value, width)))
            return inside(NamedReads(self.names, value).name(step))

        def update_all(base: Expr) -> Stmt:
            return seq(*(update(k, lanes, plus(base, k * lanes)) for k in range(count)))

        # 0 would do, but adding the first term to -0 needs no instruction
        apart = const(-0.0, dtype) if op == "+" and dtype.is_float else identity(op, dtype)
        nothing = Broadcast(identity(op, dtype) if count == 1 else apart, lanes)
        start = [Store(acc, at(k), nothing) for k in range(count)]
        start.append(Store(acc, (ZERO,), before))  # the sum so far
        main, tail = self._split(loop.replace(body=inside(scalar_step)), count * lanes, update_all)
        remainder: Stmt | None = None
        for width in _remainders(loop, lanes, count, self.knobs.dot_lanes):
            part, tail = self._split(tail, width, partial(update, 0, width))
            remainder = seq(remainder, part)
        last: Stmt | None = tail
        if self._masks(loop):
            last_loop = tail.replace(var=loop.var, body=loop.body)
            masked = LastLanes(last_loop, lanes, self.names).reduce(
                reduction.value, acc, op, inside
            )
            if nest:  # elements read for all lanes are sure to exist only if a lane runs
                masked = If(BinOp("<", last_loop.begin, last_loop.end), masked)
            remainder, last = seq(remainder, masked), None
        sums = _combined(merge, [Load(acc, at(k)) for k in range(count)])
        total: Stmt = Store(sum_, (ZERO,), Reduce(_ACROSS.get(op, op), sums))
        finish = store.replace(value=cast(so_far, store.buffer.dtype))
        ragged = self._is_ragged(loop)
        whole: Stmt = seq(*start, main, remainder, total, last)
        if ragged and last is not None:  # a fiber that fills no vector is added up as it is
            first = Store(sum_, (ZERO,), before)
            short = seq(first, self._one_by_one(loop, inside(scalar_step)))
            whole = If(BinOp("<=", const(lanes, int64), _length(loop)), whole, short)
        body = seq(whole, finish)
        result: Stmt = Alloc(acc, Alloc(sum_, body), span=loop.span)
        return self._along_fiber(loop, result) if ragged and not adds_local(loop) else result

    def _accumulator(self, loop: For, op: Combiner, store: Store) -> DType:
        """Return the type in which *loop* reduces what *store* updates.

        Conditions are numbers 0 and 1, as wide as what is compared, where none but these registers
        could hold them.
        """
        wide = self.vector_bits < self.knobs.condition_bits
        if op in EAGER and store.buffer.dtype == bool_ and wide:
            return DType("int", _bits(loop))
        return accumulator(store.buffer.dtype)

    def _local(self, of: AnyBuffer, what: str, dtype: DType, size: int) -> Buffer:
        """Return a local buffer of *dtype* in which elements of *of* are accumulated."""
        name = self.names.unique(f"{of.name}_{what}")
        return Buffer(name, None, (const(size),), dtype, "local")

    def _one_by_one(self, loop: For, step: Stmt) -> For:
        """Return *step* in a serial copy of *loop*."""
        index = self.names.var(loop.var.name)
        return loop.replace(var=index, body=substitute(step, {loop.var: index}), kind="serial")

    def _along_fiber(self, loop: For, dot: Stmt) -> Stmt:
        """Return *dot*, the vectorized *loop*, for fibers with elements, after its prefetches."""
        ahead = _streams(loop, self.knobs.stream_ahead) if gathered(loop) else ()
        return If(BinOp("<", loop.begin, loop.end), seq(*ahead, dot))


def _is_stored(node: Node) -> bool:
    """Whether *node* loads from the memory of a parameter."""
    return isinstance(node, Load) and node.buffer.data is not None


def _is_private(load: Load) -> bool:
    """Whether *load* reads a fixed element of a local buffer, which is sure to exist."""
    is_fixed = all(isinstance(index, Const) for index in load.indices)
    return is_fixed and isinstance(load.buffer, Buffer) and load.buffer.scope == "local"


def _remainders(dot: For, lanes: int, count: int, least: int) -> list[int]:
    """Return the lanes of the vectors of *dot* after its loop over *count* vectors, in order.

    What is left of a known number of trips is in vectors of *least* lanes or more.
    """
    widths = [lanes] if count > 1 else []
    while isinstance(dot.end, Const) and (lanes := lanes // 2) >= least:
        widths.append(lanes)
    return widths


def _combined(op: BinOpKind, values: list[Expr]) -> Expr:
    """Return *values*, a power of two of them, combined in pairs."""
    while len(values) > 1:
        values = [BinOp(op, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _bits(loop: For) -> int:
    """Return the bits of the widest lane that *loop* computes with."""
    dtypes = [n.buffer.dtype for n in walk(loop.body) if isinstance(n, (Load, Store))]
    return max(map(lane_bits, dtypes), default=64)


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


def _depends(store: Store, var: Var) -> bool:
    return any(var in variables(i) for i in store.indices if i is not None)
