"""In position space: the step split_runs, which reduces by sorted keys in parts of equal size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd, prod
from typing import ClassVar

from spcomp.dtypes import DType, bool_, int32, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, conjuncts, from_zero, plus, times, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import positions
from spcomp.ir.analysis.reduction import Reduction, accumulator, as_reduction, combine, identity
from spcomp.ir.arith.linear import same_value
from spcomp.ir.arith.memory import read_by
from spcomp.ir.axis import Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Select, UnOp, Var, binary, cast, const, plain
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import MOST_TRIPS, Alloc, For, If, Let, LoopKind, Seq, Stmt, Store, While, seq
from spcomp.ir.structural import expr_equal
from spcomp.knobs import CUDA_GRID
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.nests.nests import chain, find_loop, nest, replace_stmt, runs_once
from spcomp.schedule.nests.sites import path_to
from spcomp.schedule.nests.values import binding_values, ceil_div, starts_inside
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.partial_results import dense_extents
from spcomp.schedule.steps.sharing.segments import Keys, key_load, sorted_keys

SIZE = 32  # partial sums in a part of them: after two rounds, one stands for a thousand parts
ROUNDS = 2
Place = tuple[Expr, ...]
NO = const(value=False, dtype=bool_)


@dataclass(frozen=True, slots=True)
class SplitRuns(Step):
    """``for e: W[key[e]] op= x  ->  for p: for e in part p: a op= x, W[r] op= a where r ends``.

    For a loop over the fiber of a sorted axis, whose coordinates may repeat, that updates one
    element at its coordinate. Each part has *size* elements, however long the runs of equal
    coordinates are. What belongs to a run that began in an earlier part goes to a partial sum
    instead; the partial sums are runs, too, and are added in the same way, in order, so that the
    result depends on the data only. The loops over parts are bound to blocks of *groups* threads,
    along ``threadIdx.y`` if a loop inside is bound. The loops inside, up to the last one that is
    bound, go outside; the others must have few iterations, whose sums stay in registers. Of
    *at_once* elements, all loads come before the sums. Each call then checks that the coordinates
    ascend. Source: segmented reduction of COO (Bell and Garland, SC 2009).
    """

    name: ClassVar[str] = "split_runs"
    loop: str
    size: int
    groups: int
    at_once: int = field(default=4, kw_only=True)

    def plan(self, func: Func) -> RunParts:
        """Return the loop, its coordinates, and the update of an iteration."""
        loop = find_loop(func, self.loop, self)
        if min(self.size, self.groups, self.at_once) < 1 or self.size % self.at_once:
            raise self.error("size must be a multiple of at_once, and all at least 1", loop)
        if starts_inside(func, loop):
            raise self.error("a reduction goes on outside the loop, and starts there", loop)
        keys, key = sorted_keys(func, loop), key_load(func, loop)
        if keys is None or key is None:
            why = f"what {self.loop!r} writes is not told apart by a sorted coordinate"
            raise self.error(why, loop, "iterate over a sorted axis, and write at its coordinate")
        return self.runs_of(func, loop, keys)

    def runs_of(self, func: Func, loop: For, keys: Keys) -> RunParts:
        """Return the loop, taken apart."""
        return RunParts(self, func, loop, keys)

    def rewrite(self, func: Func, plan: RunParts) -> Func:
        """Return *func* with the loop in parts, and the loops that add up partial sums."""
        checked = tuple(sorted({*func.attr("order_needed", ()), plan.keys.axis.name}))
        new = replace_stmt(func, plan.top, plan.build(Names(func)))
        return new.with_attr("order_needed", checked)


class RunParts:
    """The loop over elements, taken apart.

    *top*: it, or the outermost loop that runs once around it. *lanes*: the loops inside that go
    around a part; *own*: the others, whose sums a thread has in registers.
    """

    def __init__(self, step: SplitRuns, func: Func, loop: For, keys: Keys) -> None:
        self.step, self.loop, self.keys = step, loop, keys
        (_, *spatial), block = chain(loop)
        if not isinstance(block, Block) or not isinstance(block.body, Store) or block.init:
            raise step.error("an iteration does more than update one element", loop)
        self.store = block.body
        self.top, fixed = self._above(func)
        once = [x for x in spatial if runs_once(x) and x.kind != "bound"]
        fixed |= {x.var: ZERO for x in once}
        values = binding_values(loop.body).items()
        self.values = {**fixed, **{var: substitute(value, fixed) for var, value in values}}
        bound = max((k + 1 for k, x in enumerate(spatial) if x.kind == "bound"), default=0)
        self.lanes, self.own = (
            [x for x in some if x not in once] for some in (spatial[:bound], spatial[bound:])
        )
        self.reduction = self._reduction()
        self.where = [substitute(term, self.values) for term in conjuncts(block.where)]
        self._check_loops()
        self.dtype = accumulator(self.store.buffer.dtype)
        self.neutral = identity(self.reduction.combiner, self.dtype)
        self.before, self.most = self._before(func), self._most(loop.end)
        self.start = self._start()

    # -- legality -----------------------------------------------------------------------------

    def _above(self, func: Func) -> tuple[Stmt, dict[Var, Expr]]:
        """Return the outermost statement that does this loop only, and what is fixed in it."""
        above = [n for n in path_to(func, self.loop) if n is not self.loop]
        around: list[Stmt] = []
        while above and _once(above[-1]):
            around.append(above.pop())  # type: ignore[arg-type]
        if any(isinstance(n, (For, While, If, Block)) for n in above):
            raise self.step.error("other statements are around it", self.loop)
        fixed: dict[Var, Expr] = {}
        for stmt in reversed(around):
            values = stmt.values if isinstance(stmt, Block) else {}
            fixed |= {var: substitute(value, fixed) for var, value in values.items()}
            fixed |= {stmt.var: ZERO} if isinstance(stmt, For) else {}
        return (self.loop, *around)[-1], fixed

    def _reduction(self) -> Reduction:
        """Return the update of one element; raises if it is none by + * min max and or."""
        reduction = as_reduction(self.store)
        if reduction is None or reduction.is_tuple:
            name = self.store.buffer.name
            raise self.step.error(f"{name} is not updated by + * min max and or", self.loop)
        target = memory_of(self.store.buffer)
        reads = sum(memory_of(buffer) is target for buffer in read_by(self.loop))
        if reads != 1 or self.store.mask is not None:
            raise self.step.error(f"{self.store.buffer.name} is read elsewhere too", self.loop)
        return reduction

    def _check_loops(self) -> None:
        """Raise ScheduleError unless threads can share the loops inside, or keep their sums."""
        inside = {self.loop.var, *(x.var for x in (*self.lanes, *self.own))}
        own = {self.loop.var, *(x.var for x in self.own)}
        for loop in (*self.lanes, *self.own):
            if not from_zero(loop) or variables(loop.end) & inside or any(read_by(loop.end)):
                why = f"the range of {loop.var.name!r} is not the same throughout"
                raise self.step.error(why, loop)
            if clashes := conflicts(loop):
                raise self.step.error(str(clashes[0]), loop)
        key = self.key(self.loop.var)
        places = (substitute(i, self.values) for i in self.store.indices if i is not None)
        others = (i for i in places if not expr_equal(plain(i), key))
        if any(self.loop.var in variables(index) for index in others):
            why = "which element is updated depends on more than the coordinate"
            raise self.step.error(why, self.loop)
        taken = {"blockIdx.x", "threadIdx.y"} & {x.thread for x in self.lanes}
        if taken:
            raise self.step.error(f"a loop inside is bound to {min(taken)}", self.loop)
        sizes = [int(x.end.value) if isinstance(x.end, Const) else 1 << 30 for x in self.own]
        if prod(sizes) > CUDA_GRID.thread_sums:
            hint = "split the loops inside, and bind them to threads"
            raise self.step.error("a thread has no registers for so many sums", self.loop, hint)
        if any(variables(term) & own or any(read_by(term)) for term in self.where):
            raise self.step.error("an element is updated under a condition", self.loop)

    def _most(self, end: Expr) -> Expr:
        """Return how many elements there are at most, as the parameters tell."""
        most = positions(self.keys.axis) if any(read_by(end)) else substitute(end, self.values)
        if most is None:
            why = f"no parameter says how many elements {self.keys.axis.name} has"
            raise self.step.error(why, self.loop)
        return most

    def _before(self, func: Func) -> Stmt:
        """Return the nest before this one, this one if there is none."""
        around = path_to(func, self.top)[-2:-1]
        stmts = around[0].body if around and isinstance(around[0], Seq) else (self.top,)
        before: Stmt = (self.top, *stmts[: stmts.index(self.top)])[-1]
        return before

    def _start(self) -> Const | None:
        """Return the literal to which the nest before sets all elements; None otherwise."""
        before = self.before
        loops, block = chain(before) if isinstance(before, For) else ([], before)
        if not isinstance(block, Block) or block.where or block.init:
            return None
        store, ends = block.body, {x.var: x.end for x in loops if from_zero(x)}
        if not isinstance(store, Store) or store.buffer is not self.store.buffer:
            return None
        values = {var: ends.get(value) for var, value in block.values.items()}  # type: ignore[call-overload]
        found = [values.get(index) for index in store.indices]  # type: ignore[call-overload]
        pairs = zip(found, dense_extents(store.buffer), strict=True)
        whole = all(end and extent and same_value(end, extent) for end, extent in pairs)
        each = len({*store.indices}) == len(loops) == len(ends) == len(found)
        return store.value if whole and each and isinstance(store.value, Const) else None

    # -- construction -------------------------------------------------------------------------

    def build(self, names: Names) -> Stmt:
        """Return the nests over parts of elements, and of partial sums, and the one that ends."""
        self.names, count = names, substitute(self.loop.end, self.values)
        level = _Level(self, count, self.most, self.step.size)
        nests, buffers = [], []
        for _ in range(ROUNDS + 1):
            nests.append(level.parts())
            buffers.append(level.heads)
            level = level.above()
        stmt = seq(*nests, level.rest())
        for buffer in reversed(buffers):
            stmt = Alloc(buffer, stmt)
        return stmt

    def key(self, at: Expr) -> Expr:
        """Return the coordinate of the element *at*."""
        outer = (None if i is None else substitute(i, self.values) for i in self.keys.outer)
        return Load(self.keys.buffer, (*outer, at))

    def value(self, at: Expr, where: dict[Var, Expr]) -> Expr:
        """Return what the element *at* adds; *where*: the variables of the loops inside."""
        value = substitute(self.reduction.value, self.values)
        return cast(substitute(value, {self.loop.var: at, **where}), self.dtype)

    def update(
        self, row: Expr, total: Expr, where: dict[Var, Expr], *, first: bool = False
    ) -> Store:
        """Return the update of the element of *row* by *total*; *first*: nothing did before."""
        key = self.key(self.loop.var)
        place: list[Expr] = []
        for index in self.store.indices:
            assert index is not None  # the buffer is dense
            index = substitute(index, self.values)
            is_key = expr_equal(plain(index), key)
            place.append(cast(row, index.dtype) if is_key else substitute(index, where))
        buffer = self.store.buffer
        known = self.start if first else None
        so_far = cast(known or Load(buffer, tuple(place)), self.dtype)
        new = combine(self.reduction.combiner, so_far, total)
        return Store(buffer, tuple(place), cast(new, buffer.dtype), span=self.store.span)

    def sums(self, lanes: dict[Var, Expr]) -> tuple[list[For], dict[Var, Expr]]:
        """Return copies of the loops over a thread's own sums, and what stands for variables."""
        copies = [x.replace(var=self.names.var(x.var.name)) for x in self.own]
        pairs = zip(self.own, copies, strict=True)
        return copies, {**lanes, **{x.var: copy.var for x, copy in pairs}}

    def own_sums(self) -> Buffer:
        """Return a buffer for a thread's own sums."""
        widths = tuple(x.end for x in self.own) or (const(1),)
        name = self.names.unique(f"{self.store.buffer.name}_sum")
        return Buffer(name, None, widths, self.dtype, "local")

    def cleared(self, sums: Buffer, lanes: dict[Var, Expr]) -> Stmt:
        """Return the nest that lets a thread's own *sums* begin."""
        own, _ = self.sums(lanes)
        return nest(own, Store(sums, own_place(own), self.neutral))

    def partial_sums(self, parts: Expr) -> Buffer:
        """Return a buffer for the sums of so many *parts*."""
        extents = [x.end for x in (*self.lanes, *self.own)]
        name = self.names.unique(f"{self.store.buffer.name}_parts")
        return Buffer(name, None, (parts, *extents), self.dtype)

    def place(self, part: Expr, where: dict[Var, Expr]) -> Place:
        """Return where among partial sums that of *part* is."""
        return part, *(where[x.var] for x in (*self.lanes, *self.own))

    def grid(self, count: Expr, most: Expr, body: Callable[[Expr, dict[Var, Expr]], Stmt]) -> Stmt:
        """Return *body* for each of *count* numbers, on groups of threads for *most*."""
        names, groups = self.names, const(self.step.groups)
        name, span = self.loop.var.name, self.loop.span
        block, group, number = (names.var(f"{name}_{what}") for what in "bgp")
        lanes = [x.replace(var=names.var(x.var.name)) for x in self.lanes]
        where: dict[Var, Expr] = {x.var: y.var for x, y in zip(self.lanes, lanes, strict=True)}
        inside: Expr = BinOp("<", number, count)
        for term in self.where:
            inside = BinOp("and", inside, substitute(term, where))
        stmt: Stmt = If(inside, body(number, where))
        stmt = nest(lanes, Let(number, plus(times(block, groups), group), stmt))
        thread = "threadIdx.y" if any(x.thread == "threadIdx.x" for x in lanes) else "threadIdx.x"
        stmt = For(group, ZERO, groups, stmt, "bound", thread, span=span)
        return For(block, ZERO, ceil_div(most, groups), stmt, "bound", "blockIdx.x", span=span)


def own_place(own: list[For]) -> Place:
    """Return the place of a thread's own sum inside the loops *own*."""
    return tuple(x.var for x in own) or (ZERO,)


def _once(node: Node) -> bool:
    """Whether *node* does nothing but run its body once."""
    if isinstance(node, Block):
        return node.where is None and node.init is None
    return isinstance(node, For) and runs_once(node) and node.kind == "serial"


class _Level:
    """The elements, or the partial sums of parts of those; *count* of them, *most* at the most.

    The first element of number k is ``k * stride``. It is there where the one *before* that has
    the same coordinate. *sums*: where they are; None for the elements themselves.
    """

    def __init__(
        self,
        runs: RunParts,
        count: Expr,
        most: Expr,
        size: int,
        stride: int = 1,
        before: int = 0,
        sums: Buffer | None = None,
    ) -> None:
        self.runs, self.count, self.most, self.size = runs, count, most, size
        self.stride, self.before, self.sums = stride, before, sums
        self.parts_most = ceil_div(most, const(size))
        self.heads = runs.partial_sums(self.parts_most)

    def above(self) -> _Level:
        """Return the level of the partial sums of this one."""
        before, stride = self.before + self.stride, self.stride * self.size
        count = ceil_div(self.count, const(self.size))
        return _Level(self.runs, count, self.parts_most, SIZE, stride, before, self.heads)

    # -- what an element is -------------------------------------------------------------------

    def _same(self, at: Expr, back: int) -> Expr:
        """Whether the coordinate *back* elements before number *at* is the same."""
        here = times(at, const(self.stride))
        same = BinOp("==", self.runs.key(plus(here, -back)), self.runs.key(here))
        return Select(BinOp("<=", const(back), here), same, NO)

    def follows(self, at: Expr) -> Expr:
        """Whether number *at* is in the run of the one before."""
        return self._same(at, self.before + self.stride)

    def key(self, at: Expr) -> Expr:
        """Return the coordinate of number *at*; -1 if there is no such sum."""
        key = self.runs.key(times(at, const(self.stride)))
        return Select(self._same(at, self.before), key, const(-1, key.dtype)) if self.sums else key

    def value(self, at: Expr, where: dict[Var, Expr]) -> Expr:
        """Return what number *at* adds."""
        if self.sums is None:
            return self.runs.value(at, where)
        return Load(self.sums, self.runs.place(at, where))

    # -- nests --------------------------------------------------------------------------------

    def parts(self) -> Stmt:
        """Return the nest over parts."""
        count = ceil_div(self.count, const(self.size))

        def part(number: Expr, lanes: dict[Var, Expr]) -> Stmt:
            return _Part(self, number, lanes).build()

        return self.runs.grid(count, self.parts_most, part)

    def rest(self) -> Stmt:
        """Return the nest in which each run of partial sums is added by the thread of its first."""
        runs, names = self.runs, self.runs.names

        def run(first: Expr, lanes: dict[Var, Expr]) -> Stmt:
            place = Buffer(names.unique(f"{runs.step.loop}_at"), None, (const(1),), int64, "local")
            at = Load(place, (ZERO,))
            start = Store(place, (ZERO,), first)
            more = Store(place, (ZERO,), plus(at, 1))
            row = runs.key(times(first, const(self.stride)))
            name = names.var(f"{runs.step.loop}_key", row.dtype)
            own, where = runs.sums(lanes)
            add = nest(own, runs.update(name, self.value(at, where), where))
            inside = BinOp("<", at, self.count)
            goes_on = Select(inside, self.follows(at), NO)
            walk_on = seq(start, add, more, While(goes_on, seq(add, more)))
            begins = Select(self._same(first, self.before), UnOp("not", self.follows(first)), NO)
            return If(begins, Let(name, row, Alloc(place, walk_on)))

        return self.runs.grid(self.count, self.most, run)


class _Part:
    """What one thread does for its sums of a part."""

    def __init__(self, level: _Level, part: Expr, lanes: dict[Var, Expr]) -> None:
        self.level, self.part, self.lanes, self.runs = level, part, lanes, level.runs
        self.names, self.step = level.runs.names, level.runs.step
        self.at_once = gcd(level.size, self.step.at_once)
        widths = tuple(x.end for x in self.runs.own)
        name, count = self.step.loop, const(self.at_once)
        self.key_type = self.runs.keys.buffer.dtype
        self.sums = self.runs.own_sums()
        self.values = self._local(f"{name}_values", (count, *widths))
        self.keys = self._local(f"{name}_keys", (count,), self.key_type)
        self.run = self._local(f"{name}_run", (const(1),), self.key_type)  # its coordinate
        self.head = self._local(f"{name}_head", (const(1),), int32)  # whether it began before

    def _local(self, name: str, shape: Place, dtype: DType | None = None) -> Buffer:
        return Buffer(self.names.unique(name), None, shape, dtype or self.runs.dtype, "local")

    def build(self) -> Stmt:
        """Return the statements, whole parts apart from the last one if these are elements."""
        level, first = self.level, self.names.var(f"{self.step.loop}_first")
        follows = cast(level.follows(first), int32)
        start = seq(
            self.runs.cleared(self.sums, self.lanes),
            Store(self.run, (ZERO,), level.key(first)),
            Store(self.head, (ZERO,), follows),
        )
        add = self._turns(first, whole=False)
        if level.sums is None:
            is_whole = BinOp("<=", plus(first, level.size), level.count)
            add = If(is_whole, self._turns(first, whole=True), add)
        stmt: Stmt = Let(first, times(self.part, const(level.size)), seq(start, add, self._end()))
        for buffer in (self.head, self.run, self.keys, self.values, self.sums):
            stmt = Alloc(buffer, stmt)
        return stmt

    def _turns(self, first: Expr, *, whole: bool) -> Stmt:
        """Return the loop over the part, *at_once* elements in a turn; *whole*: all are there."""
        level, count, loop = self.level, const(self.at_once), self.step.loop
        turn, of_key, of_value, of_sum = (self.names.var(f"{loop}_{wish}") for wish in "nklm")
        begin = plus(first, times(turn, count))
        last = level.key(binary("-", level.count, const(1)))
        own, where = self.runs.sums(self.lanes)
        place = of_value, *(x.var for x in own)
        inside: Expr = BinOp("<", plus(begin, of_value), level.count)
        if level.sums is not None:
            there = BinOp("<=", const(0, self.key_type), Load(self.keys, (of_value,)))
            inside = BinOp("and", inside, there)
        key, value = level.key(plus(begin, of_key)), level.value(plus(begin, of_value), where)
        if not whole:
            key = Select(BinOp("<", plus(begin, of_key), level.count), key, last)
            value = Select(inside, value, self.runs.neutral)
        kind: LoopKind = "vectorized" if whole else "unroll"
        keys = For(of_key, ZERO, count, Store(self.keys, (of_key,), key), kind)
        kind = "unroll" if own else kind
        values = For(of_value, ZERO, count, nest(own, Store(self.values, place, value)), kind)
        add = For(of_sum, ZERO, count, self._add(of_sum), "unroll")
        rolled = ((MOST_TRIPS, 1),)  # registers hold one turn
        trips = const(level.size // self.at_once)
        return For(turn, ZERO, trips, seq(keys, values, add), attrs=rolled)

    def _add(self, which: Var) -> Stmt:
        """Return what adds value number *which* of a turn, after the end of the run before it."""
        key = Load(self.keys, (which,))
        end = seq(
            self._end(),
            self.runs.cleared(self.sums, self.lanes),
            Store(self.run, (ZERO,), key),
            Store(self.head, (ZERO,), const(0, int32)),
        )
        own, _ = self.runs.sums(self.lanes)
        mine = tuple(x.var for x in own)
        total = combine(
            self.runs.reduction.combiner, self._sum(mine), Load(self.values, (which, *mine))
        )
        add = nest(own, Store(self.sums, mine or (ZERO,), total))
        return seq(If(BinOp("!=", key, Load(self.run, (ZERO,))), end), add)

    def _sum(self, mine: Place) -> Load:
        return Load(self.sums, mine or (ZERO,))

    def _end(self) -> Stmt:
        """Return what ends a run: its sum goes to its element, or to those of the parts."""
        run = Load(self.run, (ZERO,))
        own, where = self.runs.sums(self.lanes)
        mine = tuple(x.var for x in own)
        first = self.level.sums is None
        update = nest(own, self.runs.update(run, self._sum(mine), where, first=first))
        if self.level.sums is not None:
            update = If(BinOp("<=", const(0, self.key_type), run), update)
        own, where = self.runs.sums(self.lanes)
        mine = tuple(x.var for x in own)
        place = self.runs.place(self.part, where)
        head = nest(own, Store(self.level.heads, place, self._sum(mine)))
        began_before = BinOp("!=", Load(self.head, (ZERO,)), const(0, int32))
        return If(began_before, head, update)
