"""In position space: the steps split, loop_partition, reorder and fuse."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from spcomp.ir.analysis.exprs import ZERO, both, from_zero, may_fail, trip_count, variables
from spcomp.ir.analysis.init_plan import init_plan
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import divides, prove, simplify
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import (
    changes_range,
    conflicts,
    loop_named,
    loops_of,
)
from spcomp.schedule.legality.order import ascending_axes, with_order
from spcomp.schedule.legality.reductions import innermost, is_dot, only_reduces
from spcomp.schedule.nests.nests import (
    Fresh,
    chain,
    find_loop,
    nest,
    reduction_loops,
    replace_stmt,
)
from spcomp.schedule.nests.sites import check_concurrent
from spcomp.schedule.steps.base import MOST, Step

MOST_PIECES = 16  # loops that one loop is split in


@dataclass(frozen=True, slots=True)
class Split(Step):
    """``for k in n: s  ->  for k_o in ceil(n / f): for k_i in f: s[k := k_o * f + k_i]``.

    *factors*: the trip counts of the pieces, outermost first; one may be None, which is then as
    large as needed, and a number f stands for (None, f). Two pieces are called k_o and k_i, more
    k_0, k_1, ... Legal where the factors cover the range. Where their product is not proved to be
    the trip count, statements with an effect are guarded by ``k_o * f + k_i < n``. Source: TVM's
    split.
    """

    name: ClassVar[str] = "split"
    loop: str
    factors: int | tuple[int | None, ...]

    def __post_init__(self) -> None:
        if isinstance(self.factors, (tuple, list)):
            factors = tuple(self.factors)
            short = len(factors) == 2 and factors[0] is None and isinstance(factors[1], int)
            object.__setattr__(self, "factors", factors[1] if short else factors)

    def plan(self, func: Func) -> Func:
        """Return *func* with the loop split into one loop for each factor.

        Only that shows whether loops around are still independent, and reductions start where they
        did.
        """
        loop = find_loop(func, self.loop, self)
        factors = self._pieces(loop)
        if loop.kind == "vectorized":
            why = "a loop in vectors is innermost: split it first, and vectorize a piece"
            raise self.error(why, loop)
        if loop.thread.startswith("threadIdx") and is_dot(*innermost(loop)):
            raise self.error("threads reduce over it together", loop, "split it before bind")
        _check_range(self, loop)
        count, product = _count(loop), prod(f for f in factors if f is not None)
        exact = divides(product, count)
        if None not in factors:
            certain = simplify(count)
            exact = isinstance(certain, Const) and certain.value == product
        if None not in factors and not prove(BinOp("<=", count, const(product)), {}):
            raise self.error(f"the loop may run more often than {product} times", loop)
        rounded = count if exact else binary("+", count, product - 1)
        inferred = simplify(binary("//", rounded, product))
        trips = [inferred if f is None else const(f) for f in factors]
        names, ends = Names(func), ("o", "i") if len(trips) == 2 else range(len(trips))
        pieces = [names.var(f"{self.loop}_{end}") for end in ends]
        index: Expr = pieces[0]
        for var, trip in zip(pieces[1:], trips[1:], strict=True):
            index = binary("+", binary("*", index, trip), var)
        value = index if from_zero(loop) else binary("+", loop.begin, index)
        body = substitute(loop.body, {loop.var: value})
        if not exact:
            body = _Guard(BinOp("<", index, count), pieces).rewrite(body)
        for var, trip in reversed([*zip(pieces, trips, strict=True)][1:]):
            body = For(var, ZERO, trip, body, span=loop.span)
        outer = loop.replace(var=pieces[0], begin=ZERO, end=trips[0], body=body)
        new = replace_stmt(func, loop, outer)
        if variables(value) - {*pieces, *func.params} and _starts(new) != _starts(
            func, loop, outer
        ):
            raise self.error("a reduction would start further out", loop)
        return _check_claims(self, func, new, loop)

    def _pieces(self, loop: For) -> tuple[int | None, ...]:
        """Return the factors; raises ScheduleError if a loop cannot be split by them."""
        factors = (None, self.factors) if isinstance(self.factors, int) else self.factors
        if len(factors) < 2:
            raise self.error("a loop is split in at least two", loop)
        if len(factors) > MOST_PIECES:
            raise self.error(f"a loop is split in at most {MOST_PIECES}", loop)
        if factors.count(None) > 1:
            raise self.error("only one factor can be inferred", loop)
        fixed = [factor for factor in factors if factor is not None]
        if min(fixed) < 1:
            raise self.error("the factor must be at least 1", loop)
        if prod(fixed) > MOST:
            raise self.error("the factors multiply to 2**31 or more", loop)
        return factors


def _starts(func: Func, old: For | None = None, new: For | None = None) -> dict[str, Var]:
    """Return the variable of the loop before which each reduction starts, by block name.

    The variable of *new* stands for that of *old*.
    """
    starts: dict[str, Var] = {}
    for loop, nests in init_plan(func.body).items():
        var = loop.var if isinstance(loop, For) else loop.coordinate
        if old is not None and new is not None and var is old.var:
            var = new.var
        starts |= {nest.block.name: var for nest in nests}
    return starts


class _Guard(Rewriter):
    """Guards by *cond* the statements that have an effect or whose expressions may fail.

    Outermost blocks take the condition. *pieces*: variables that may be beyond the last iteration.
    """

    def __init__(self, cond: Expr, pieces: list[Var]) -> None:
        self.cond, self.beyond = cond, set(pieces)

    def visit_Block(self, block: Block) -> Node:
        if any(read_by(*(it.value for it in block.iters))):
            return self.visit_Stmt(block)  # the values of iters are evaluated before the guard
        return block.replace(where=both(self.cond, block.where))

    def visit_Seq(self, stmt: Seq) -> Node:
        return self.visit_Node(stmt)

    def visit_Alloc(self, stmt: Alloc) -> Node:
        return self.visit_Node(stmt)

    def visit_For(self, loop: For) -> Node:
        return self._around(loop, (loop.begin, loop.end))

    def visit_Let(self, let: Let) -> Node:
        return self._around(let, (let.value,))

    def _around(self, stmt: For | Let, parts: tuple[Expr, ...]) -> Node:
        if any(variables(part) & self.beyond for part in parts):
            self.beyond.add(stmt.var)
            if any(read_by(*parts)) or any(map(may_fail, parts)):
                return self.visit_Stmt(stmt)
        return stmt.replace(body=self.rewrite(stmt.body))

    def visit_Stmt(self, stmt: Stmt) -> Node:
        return If(self.cond, stmt, span=stmt.span)


def _check_range(step: Step, loop: For) -> None:
    """Raise if *loop* writes what its range is computed from."""
    if (conflict := changes_range(loop)) is not None:
        raise step.error(str(conflict), loop)


def _count(loop: For) -> Expr:
    return loop.end if from_zero(loop) else binary("-", loop.end, loop.begin)


@dataclass(frozen=True, slots=True)
class LoopPartition(Step):
    """``for k in n: s  ->  d = n // m * m; for k in d: s; for r in n - d: s[k := d + r]``.

    Legal unless a reduction starts with the loop, which would be twice, or the loop is bound to a
    thread index, which both parts would then have with different extents.
    """

    name: ClassVar[str] = "loop_partition"
    loop: str
    multiple: int

    def plan(self, func: Func) -> Func:
        """Return *func* with the loop cut after the largest multiple of *multiple*.

        Only that shows whether loops around are still independent.
        """
        loop = find_loop(func, self.loop, self)
        if self.multiple < 1:
            raise self.error("the multiple must be at least 1", loop)
        if loop.kind == "bound":
            why = f"{self.loop!r} is bound to {loop.thread}, its parts would not run as often"
            raise self.error(why, loop)
        if (block := _starting(loop)) is not None:
            hint = f"decompose_reduction({block.name!r}, {self.loop!r})"
            raise self.error("a reduction would start again in its second part", loop, hint)
        _check_range(self, loop)
        count = _count(loop)
        cut = simplify(binary("*", binary("//", count, self.multiple), self.multiple))
        main = loop.replace(end=cut if from_zero(loop) else binary("+", loop.begin, cut))
        names = Names(func)
        var = names.var(f"{self.loop}_rest")
        least = simplify(binary("max", cut, 0))  # the loop may end before it begins
        offset = least if isinstance(least, Const) else names.var(f"{self.loop}_done")
        start = offset if from_zero(loop) else binary("+", loop.begin, offset)
        body = Fresh(names, "_rest", {loop.var: binary("+", start, var)}).rewrite(loop.body)
        trips = simplify(binary("-", count, offset))
        tail: Stmt = loop.replace(var=var, begin=ZERO, end=trips, body=body)
        if isinstance(offset, Var) and not _is_empty(tail):
            tail = Let(offset, least, tail, span=loop.span)
        parts = [part for part in (main, tail) if not _is_empty(part)]
        new = replace_stmt(func, loop, seq(*parts))
        return _check_claims(self, func, new, loop)


def _starting(loop: For) -> Block | None:
    """Return a block in *loop* that reduces over it, and starts with it."""
    blocks = (n for n in walk(loop.body) if isinstance(n, Block) and n.init is not None)
    return next((b for b in blocks if _reduces_over(b, loop.var)), None)


def _reduces_over(block: Block, var: Var) -> bool:
    return any(it.kind == "R" and var in variables(it.value) for it in block.iters)


def _check_claims(step: Step, func: Func, new: Func, loop: For) -> Func:
    """Return *new*; raises ScheduleError where a parallel loop around is no longer proved to be.

    Otherwise *new*, printed and read again, would be refused.
    """
    for outer in loops_of(func.body):
        claims = outer.kind in ("parallel", "bound") and loop in loops_of(outer.body)
        if not claims or not any(_adds(node, outer.var, loop.var) for node in walk(loop)):
            continue
        new_loop, ascending = loop_named(new.body, outer.var.name), ascending_axes(func)
        clashes = () if new_loop is None else conflicts(new_loop, atomic=True, ascending=ascending)
        if clashes and not conflicts(outer, atomic=True, ascending=ascending):
            why = f"loop {outer.var.name!r} could not be seen to be {outer.kind}: {clashes[0]}"
            hint = "do this before the loop is split, or to one that is serial"
            raise step.error(why, loop, hint)
    return new


def _adds(node: Node, *names: Var) -> bool:
    """Whether *node* is a sum with all of *names* in it."""
    return isinstance(node, BinOp) and node.op == "+" and {*names} <= variables(node)


def _is_empty(stmt: Stmt) -> bool:
    if not isinstance(stmt, For) or not from_zero(stmt):
        return False
    return isinstance(stmt.end, Const) and stmt.end.value == 0


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """``for j: for k: s  ->  for k: for j: s`` for any order of loops nested perfectly.

    Legal where of every two loops that change places one has independent iterations, and no trip
    count needs the variable of a loop that is then inside. Iterations also count as independent if
    they write at coordinates of a sorted axis without repetitions, which each call then checks.
    Loops that are not named keep their places.
    """

    name: ClassVar[str] = "reorder"
    loops: tuple[str, ...]

    def plan(self, func: Func) -> Func:
        """Return *func* with the loops in the new order."""
        named = [find_loop(func, name, self) for name in self.loops]
        outermost = next((n for n in named if {*named} <= {*chain(n)[0]}), None)
        if outermost is None or len({*named}) != len(named):
            raise self.error("the loops are not nested directly in each other", func)
        before, body = chain(outermost)
        order = iter(named)
        after = [next(order) if loop in named else loop for loop in before]
        new = nest(after, body)
        result = replace_stmt(self._check_order(func, before, after, new), outermost, new)
        return check_concurrent(self, func, result, outermost.span)

    def _check_order(self, func: Func, before: list[For], after: list[For], new: Stmt) -> Func:
        """Return *func* with the promises that this order needs; raises if it is not legal."""
        reducing = reduction_loops(func)
        for k, loop in enumerate(after):
            inner = {later.var for later in after[k + 1 :]}
            if (variables(loop.begin) | variables(loop.end)) & inner:
                why = f"the trip count of {loop.var.name!r} depends on a loop then inside it"
                raise self.error(why, loop)
        assert isinstance(new, For)
        now = {loop.var: loop for loop in chain(new)[0]}
        for k, first in enumerate(before):
            for second in before[k + 1 :]:
                if after.index(second) < after.index(first):
                    func = self._check_swap(func, first, now[second.var], reducing)
        return func

    def _check_swap(self, func: Func, first: For, second: For, reducing: set[Var]) -> Func:
        """Return *func* with the promise that this swap needs; raises if it is not legal.

        One of the two loops must have independent iterations, or both must only reduce, and no
        iteration may change a range.
        """
        if trip_count(first) in (0, 1) or trip_count(second) in (0, 1):
            return func
        for loop in (first, second):  # its range would be computed at other times
            if clash := changes_range(loop):
                raise self.error(str(clash), loop)
        either = sorted((first, second), key=lambda loop: loop.var in reducing)
        if not conflicts(either[0]) or not (clashes := conflicts(either[1])):
            return func
        serial = second.kind not in ("parallel", "bound")  # further out it would share more
        if serial and {first.var, second.var} <= reducing and only_reduces(first.body):
            return func  # sums in another order: the same up to rounding
        for loop in either:
            promising, remaining = with_order(func, loop)
            if not remaining:
                return promising
        raise self.error(str(clashes[0]), first)


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """``for i in n: for j in m: s  ->  for i_j in n * m: s[i := i_j // m, j := i_j % m]``.

    Legal for perfectly nested loops of one kind, all from 0, if inner ranges are the same
    throughout. A loop that drives a reduction which starts inside does not fuse with one that does
    not: the init would depend on both. Iterations keep their order. Source: TVM's fuse.
    """

    name: ClassVar[str] = "fuse"
    loops: tuple[str, ...]

    def plan(self, func: Func) -> Func:
        """Return *func* with the loops as one, fused pair by pair: each may rule out the next."""
        if len(self.loops) < 2:
            raise self.error("it takes two loops or more", func)
        outer = find_loop(func, self.loops[0], self)
        for name in self.loops[1:]:
            func, outer = self._pair(func, outer, find_loop(func, name, self))
        return func

    def _pair(self, func: Func, outer: For, inner: For) -> tuple[Func, For]:
        """Return *func* with the two loops as one, and that loop."""
        if outer.body is not inner:
            why = f"{inner.var.name!r} is not directly inside {outer.var.name!r}"
            raise self.error(why, outer)
        if not (from_zero(outer) and from_zero(inner)) or outer.var in variables(inner.end):
            raise self.error("the inner range is not the same throughout, from 0", outer)
        _check_range(self, outer)
        _check_range(self, inner)
        if (outer.kind, outer.thread) != (inner.kind, inner.thread):
            kind, inner_kind = (loop.thread or loop.kind for loop in (outer, inner))
            raise self.error(f"one is {kind}, the other {inner_kind}", outer)
        reducing = reduction_loops(func)
        starts = any(isinstance(n, Block) and n.init for n in walk(inner.body))
        if starts and (outer.var in reducing) != (inner.var in reducing):
            raise self.error("one of them drives a reduction that starts inside", outer)
        both_ = Names(func).var(f"{outer.var.name}_{inner.var.name}")
        values: dict[Var, Expr] = {
            outer.var: binary("//", both_, inner.end),
            inner.var: binary("%", both_, inner.end),
        }
        trips = simplify(binary("*", binary("max", outer.end, 0), inner.end))
        fused = outer.replace(var=both_, end=trips, body=substitute(inner.body, values))
        return replace_stmt(func, outer, fused), fused
