"""In position space: the step online_softmax, which goes through the elements of a row once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import DType
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import combine
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, binary, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Prefetch, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.fibers import FiberNest
from spcomp.schedule.nests.nests import find_loop, nest
from spcomp.schedule.nests.values import ceil_div
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.sharing.rescaled import Rescaled, Value


@dataclass(frozen=True, slots=True)
class OnlineSoftmax(Step):
    """``M = max(X); E = exp(X - M); S += E; O += E * V / S  ->  all of that, *size* X a turn``.

    *loop* is that over rows, in which nests over the same elements follow each other. The maximum
    so far takes the place of M; where it grows from m to n, what has been summed is multiplied by
    ``exp(m - n)``. Quotients by sums are taken at the end. So what is computed for each element, X
    and E, is only kept for *size* of them. Legal where nests store elements of arrays that only
    they use, and sums of what is proportional to ``exp(X - M)``. Sums are formed in another order.
    Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
    """

    name: ClassVar[str] = "online_softmax"
    makes: ClassVar[Makes] = "blocks"
    loop: str
    size: int

    def plan(self, func: Func) -> Online:
        """Return the row in turns; only building it shows whether all of it can be rescaled."""
        loop = find_loop(func, self.loop, self)
        if self.size < 1:
            raise self.error("the size must be at least 1", loop)
        return _Row(self, func, loop).build()

    def rewrite(self, func: Func, plan: Online) -> Func:
        """Return the program with the row in turns."""
        del func
        return plan.func


@dataclass(frozen=True, slots=True)
class Online:
    """The program *func*, in which an iteration of the loop *rows* goes through its row in turns.

    *top*: the maximum; *sums*: what is rescaled where it grows; *gone*: the arrays that need no
    memory.
    """

    func: Func
    rows: str
    top: str
    sums: tuple[str, ...]
    gone: tuple[str, ...]

    def __str__(self) -> str:
        without = f"; no memory for {', '.join(self.gone)}" if self.gone else ""
        sums = " and ".join(self.sums)
        return f"{sums} in the loop {self.rows}, with the maximum {self.top} so far{without}"


class _Row:
    """A row that is made to go through its elements once."""

    def __init__(self, step: OnlineSoftmax, func: Func, loop: For) -> None:
        self.step, self.func, self.loop, self.names = step, func, loop, Names(func)
        self.parts = _Parts.of(step, loop)
        self.nests, self.top = self.parts.nests, self.parts.top
        self.length = self.top.loops[0].end
        self.turn = self.names.var(f"v{loop.var.name}_turn")
        self.place = self.names.var(f"v{self.top.element.name}")  # in the turn
        first = binary("*", self.turn, const(step.size))
        self.count = BinOp("min", binary("-", self.length, first), const(step.size))
        element = plus(first, self.place)
        self.values = Rescaled(step, loop, self.nests, self.top, element)
        self.starts: list[Stmt] = []
        self.inside: list[Stmt] = []  # a turn
        self.ends: list[Stmt] = []
        self.buffers: dict[str, list[Buffer]] = {"row": [], "turn": []}
        self.scaled: list[str] = []
        self.shrink: Expr = ZERO
        self.is_low: Expr = ZERO

    def build(self) -> Online:
        """Return the program; raises ScheduleError where something cannot be rescaled."""
        for x in self.nests:
            if x is self.top:
                self._maximum()
            elif x.sums:
                self._sum(x)
            else:
                self._element(x)
        if not self.scaled:
            raise self.step.error("nothing that it sums up depends on the maximum", self.loop)
        private, elements = self._private(), dict.fromkeys(self.values.elements)
        if shared := [buffer.name for buffer in elements if buffer not in private]:
            why = f"{shared[0]} is an argument or a result, or is read elsewhere"
            raise self.step.error(why, self.loop)
        gone = {
            x.store.buffer: x.store.buffer.name for x in self.nests if x.store.buffer in private
        }
        func, top = self._func({*gone}), self.top.store.buffer.name
        return Online(func, self.loop.var.name, top, tuple(self.scaled), tuple(gone.values()))

    def _element(self, x: FiberNest) -> None:
        """Compute an element of an array, which later nests of the row read."""
        target, values = x.store.buffer, self.values
        reduction = x.reduction if x.reduces else None
        if x.inner and (reduction is None or x.init is None):
            raise self.step.error(
                f"{target.name} has more than one value for an element", self.loop
            )
        value = values.of(x.store.value if reduction is None else reduction.value)
        self._weights()
        if not value.is_kept:
            if value.over or (reduction is not None and value.is_scaled):
                raise self.step.error(f"{target.name} cannot be rescaled", self.loop)
            tile = self._buffer("turn", f"{target.name}_tile", target.dtype, self.step.size)
            here, expr, start = Load(tile, (self.place,)), value.expr, None
            if reduction is not None:
                assert x.init is not None
                expr = combine(reduction.combiner, here, expr)
                start = Store(tile, here.indices, values.plain(x.init.value))
            self._each(x, Store(tile, here.indices, expr), start)
            value = Value(here, value.is_scaled)
        values.elements[target] = x.store.indices, value

    def _maximum(self) -> None:
        """Compute the maximum so far, and how much smaller it makes what was summed before."""
        store, values, dtype = self.top.store, self.values, self.top.store.buffer.dtype
        assert self.top.reduction is not None
        assert self.top.init is not None
        value = values.plain(self.top.reduction.value)
        top, old, shift, shrink = (
            Load(self._buffer(where, f"{store.buffer.name}_{name}", dtype), (ZERO,))
            for where, name in zip(
                ("row", *("turn",) * 3), ("so_far", "before", "shift", "shrink"), strict=True
            )
        )
        self.starts.append(self._set(top, values.plain(self.top.init.value)))
        self.inside.append(self._set(old, top))
        self._each(self.top, Store(top.buffer, top.indices, combine("max", top, value)))
        # before any number, nothing is summed: infinity less infinity would be none
        self.is_low = BinOp("==", top, const(float("-inf"), dtype))
        self.inside.append(self._set(shift, Select(self.is_low, const(0, dtype), top)))
        self.inside.append(self._set(shrink, values.power(BinOp("-", old, shift))))
        self.shrink = shrink
        tile = self._buffer("turn", f"{store.buffer.name}_weights", dtype, self.step.size)
        values.found(value, shift, Load(tile, (self.place,)))
        self.ends.append(self._set(Load(store.buffer, store.indices), top))

    def _weights(self) -> None:
        """Compute the powers of the elements of a turn, the first time that they are needed."""
        if (store := self.values.weights()) is not None:
            self._each(self.top, store, again="weights")

    def _sum(self, x: FiberNest) -> None:
        """Add up the elements of a turn, for each iteration of the inner loops."""
        target, reduction = x.store.buffer, x.reduction
        is_sum = reduction is not None and reduction.combiner == "+" and _is_zero(x.init)
        if not is_sum or reduction is None or not x.reduces <= {x.element}:
            raise self.step.error(f"{target.name} is no sum from 0", self.loop)
        value = self.values.of(reduction.value)
        self._weights()
        result = total = Load(target, x.store.indices)
        if not x.inner:
            total = Load(self._buffer("row", f"{target.name}_so_far", target.dtype), (ZERO,))
        self.starts.append(self._along(x, self._set(total, const(0, target.dtype))))
        if value.is_scaled:
            self.inside.append(self._along(x, self._set(total, BinOp("*", total, self.shrink))))
            self.scaled.append(target.name)
        self._each(x, Store(total.buffer, total.indices, BinOp("+", total, value.expr)))
        final: Expr = total
        for divisor in value.over:
            final = BinOp("/", final, divisor)
        if value.is_scaled != bool(value.over):  # 0 / 0 needs no help
            final = Select(self.is_low, const(float("nan"), target.dtype), final)
        if not value.is_plain:  # of no elements there is no quotient
            some = BinOp("<", ZERO, self.length)
            self.ends.append(self._along(x, self._set(total, final).replace(where=some)))
        if not x.inner:
            self.ends.append(self._set(result, total))
        known = value.is_scaled and not value.over and not x.inner
        self.values.sums[target] = x.store.indices, total if known else None

    def _buffer(self, where: str, name: str, dtype: DType, size: int = 1) -> Buffer:
        """Return new memory that lives in the *row* or *turn*."""
        scope = "local" if size == 1 else "global"
        buffer = Buffer(self.names.unique(name), None, (const(size),), dtype, scope)
        self.buffers[where].append(buffer)
        return buffer

    def _set(self, element: Load, value: Expr) -> Block:
        name = self.names.unique(f"{element.buffer.name}_set")
        return Block(name, (), (), (), None, Store(element.buffer, element.indices, value))

    def _along(self, x: FiberNest, block: Block) -> Stmt:
        """Return *block* in copies of the inner loops of *x*."""
        loops = [loop.replace(var=self.names.var(loop.var.name)) for loop in x.inner]
        iters = tuple(self._iter(loop, loop.var, "S") for loop in loops)
        values = {old.var: it.var for old, it in zip(x.inner, iters, strict=True)}
        return nest(loops, substitute(block, values).replace(iters=iters))

    def _each(self, x: FiberNest, store: Store, init: Store | None = None, again: str = "") -> None:
        """Add a loop over the elements of the turn that makes *store* in the inner loops of *x*.

        *again*: the end of the name, if there is another such loop.
        """
        var = self.names.var(x.own.name) if again else x.own
        sums = not any(self.place in variables(i) for i in store.indices if i is not None)
        loops = [For(var, ZERO, self.count, seq(), span=x.loops[0].span), *x.inner]
        kinds = ["R" if sums else "S", *("R" if y.var in x.reduces else "S" for y in x.inner)]
        olds = [self.place, *(y.var for y in x.inner)]
        iters = [self._iter(y, y.var, kind) for y, kind in zip(loops, kinds, strict=True)]
        values = {old: it.var for old, it in zip(olds, iters, strict=True)}
        name = self.names.unique(f"{x.name}_{again}") if again else x.name
        start = None if init is None else substitute(init, values)
        block = Block(name, tuple(iters), (), (), start, substitute(store, values))
        self.inside.append(nest(loops, block))

    def _iter(self, loop: For, value: Expr, kind: str) -> BlockIter:
        var = self.names.var(f"v{loop.var.name}")
        return BlockIter(var, loop.end, value, "R" if kind == "R" else "S")

    def _private(self) -> set[AnyBuffer]:
        """Return the arrays that need no memory: only the nests of this row use them."""
        allocated = (n.buffer for n in walk(self.func.body) if isinstance(n, Alloc))
        core, rows = seq(*self.parts.core), (x for x in self.nests if x.sums and x.inner)
        mine = {b for b in allocated if _uses(core, b) == _uses(self.func.body, b)}
        return mine - {x.store.buffer for x in rows}

    def _func(self, gone: set[AnyBuffer]) -> Func:
        """Return the program with the new row, and without the memory of the arrays *gone*."""
        loop, parts = self.loop, self.parts
        turns = ceil_div(self.length, const(self.step.size))
        turn = For(self.names.var(f"{loop.var.name}_turn"), ZERO, turns, seq(), span=loop.span)
        it = BlockIter(self.turn, turns, turn.var, "R")
        inside = _allocated(self.buffers["turn"], seq(*self.inside))
        name = self.names.unique(f"{self.top.name}_turn")
        turn = turn.replace(body=Block(name, (it,), (), (), None, inside))
        ends = [x for x in self.ends if not _stores(x) & gone]
        row = self._iter(loop, loop.var, "S")
        body = _allocated(self.buffers["row"], seq(*self.starts, turn, *ends))
        name = self.names.unique(f"{self.top.name}_row")
        block = Block(name, (row,), (), (), None, substitute(body, {loop.var: row.var}))
        stmts = seq(*parts.before, annotate_regions(block), *parts.after)
        whole = Replace(loop, loop.replace(body=stmts)).rewrite(self.func.body)
        return self.func.replace(body=_Without(gone).rewrite(whole))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The body of a row: the statements *before*, the *nests* over its elements, those *after*.

    *core*: the statements that are these nests; *top*: the one that computes the maximum.
    """

    before: tuple[Stmt, ...]
    core: tuple[Stmt, ...]
    after: tuple[Stmt, ...]
    nests: tuple[FiberNest, ...]
    top: FiberNest

    @classmethod
    def of(cls, step: Step, loop: For) -> _Parts:
        """Return the parts of the body of *loop*; raises ScheduleError if there is no maximum."""
        stmts, found = _nests(loop)
        at = next((k for k, x in enumerate(found) if x is not None and _is_top(x)), None)
        if loop.kind != "serial" or at is None:
            raise step.error("no nest in it computes the maximum of floats in a row", loop)
        top = found[at]
        assert top is not None
        along = [None if x is None else x.along(top) for x in found]
        begin, end = at, at + 1
        while begin and along[begin - 1] is not None:
            begin -= 1
        while end < len(along) and along[end] is not None:
            end += 1
        nests = tuple(x for x in along[begin:end] if x is not None)
        return cls(stmts[:begin], stmts[begin:end], stmts[end:], nests, nests[at - begin])


def maxima(loop: For) -> tuple[str, ...]:
    """Return the names of the arrays to which *loop* assigns the maximum of each row."""
    return tuple(x.store.buffer.name for x in _nests(loop)[1] if x is not None and _is_top(x))


def _nests(loop: For) -> tuple[tuple[Stmt, ...], list[FiberNest | None]]:
    """Return the statements of *loop*, and as what nests over elements they can be read."""
    stmts = loop.body.body if isinstance(loop.body, Seq) else (loop.body,)
    return stmts, [FiberNest.of(stmt) for stmt in stmts]


def _is_top(x: FiberNest) -> bool:
    """Whether *x* computes the maximum of floats over all elements."""
    dtype, reduction = x.store.buffer.dtype, x.reduction
    is_max = reduction is not None and reduction.combiner == "max"
    wide = dtype.is_float and dtype.bits >= 32
    return is_max and wide and x.sums and not x.inner and x.init is not None


def _is_zero(init: Store | None) -> bool:
    value = None if init is None else init.value
    return isinstance(value, Const) and value.value == 0


def _uses(node: Node, buffer: AnyBuffer) -> int:
    kinds = (Load, Store, Search, Prefetch)
    return sum(isinstance(n, kinds) and n.buffer is buffer for n in walk(node))


def _stores(node: Node) -> set[AnyBuffer]:
    return {n.buffer for n in walk(node) if isinstance(n, Store)}


def _allocated(buffers: list[Buffer], stmt: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        stmt = Alloc(buffer, stmt)
    return stmt


class _Without(Rewriter):
    """Drops the allocations of *buffers*, which nothing uses."""

    def __init__(self, buffers: set[AnyBuffer]) -> None:
        self.buffers = buffers

    def visit_Alloc(self, alloc: Alloc) -> Node:
        """Return what is inside, or the allocation of another buffer."""
        new = self.visit_Node(alloc)
        return new.body if alloc.buffer in self.buffers else new  # type: ignore[attr-defined]
