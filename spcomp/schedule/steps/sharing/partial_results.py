"""In position space: the step partial_results, which gives each iteration its own sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import (
    Combiner,
    Reduction,
    accumulator,
    as_reduction,
    combine,
    identity,
)
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.linear import same_value
from spcomp.ir.arith.memory import read_by, reads_of, writes_of
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, cast, const, plain
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Let, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.nests.sites import bound_in, path_to, refusal
from spcomp.schedule.nests.values import path_values
from spcomp.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class PartialResults(Step):
    """``for c: s(W[e] op= x)  ->  for c: a = 0; s(a op= x); P[c] = a; for c: W[e] op= P[c]``.

    Each iteration of *loop* computes its own sum, whatever loops and other statements are in it,
    and the sums are added in order. The loop may then run in parallel, with the same result at any
    number of threads. Legal where all that the loop writes outside itself is one element, which is
    sure to exist, by associative updates of one kind; nothing else in it reads that; and a bound of
    its trip count is known at the call. Sums are formed in another order.
    """

    name: ClassVar[str] = "partial_results"
    loop: str

    def plan(self, func: Func) -> tuple[For, Reduction, Expr]:
        """Return the loop, its reduction, and a bound of its trip count."""
        loop = find_loop(func, self.loop, self)
        if not from_zero(loop) or loop.kind != "serial":
            raise refusal(self, "it is no serial loop from 0", loop.span)
        reduction = shared_update(loop)
        if reduction is None:
            why = "it does more than to reduce into one element"
            raise refusal(self, why, loop.span)
        if block := next(iter(starts(loop)), None):
            hint = f"decompose_reduction({block.name!r}, {self.loop!r})"
            raise refusal(self, "the reduction starts in it", loop.span, hint=hint)
        if not _exists(func, loop, reduction):
            why = (
                f"an element of {reduction.buffer.name} may not be there if nothing is added to it"
            )
            raise refusal(self, why, loop.span)
        most = _at_most(func, loop)
        if most is None:
            why = "how often it runs is not known when the function is called"
            raise refusal(self, why, loop.span, hint="split it into chunks")
        return loop, reduction, most

    def rewrite(self, func: Func, plan: tuple[For, Reduction, Expr]) -> Func:
        """Return *func* with a partial result for each iteration."""
        loop, reduction, most = plan
        return replace_stmt(func, loop, _partial(loop, reduction, Names(func), most))


def shared_update(loop: For) -> Reduction | None:
    """Return the reduction that is the only effect of *loop* outside itself; None if it has others.

    Its element is the same in all iterations; its init may be in the loop.
    """
    private, inits = _private(loop), {block.init for block in starts(loop)}
    stores = [n for n in walk(loop.body) if isinstance(n, Store) and n.buffer not in private]
    stores = [store for store in stores if store not in inits]
    reductions = [as_reduction(store) for store in stores]
    if not reductions or None in reductions:
        return None
    first, *others = (r for r in reductions if r is not None)
    same = (
        r.buffer is first.buffer
        and r.combiner == first.combiner
        and r.value.dtype == first.value.dtype
        and all(map(expr_equal, r.indices, first.indices))
        for r in others
    )
    memory, inside = memory_of(first.buffer), bound_in(loop)
    reads = [buffer for buffer in read_by(loop) if memory_of(buffer) is memory]
    changed = writes_of(loop.body) | private
    fixed = not any(
        variables(i) & inside or reads_of(i) & changed for i in first.indices if i is not None
    )
    alone = len(reads) == len(stores) and all(buffer is first.buffer for buffer in reads)
    return first if all(same) and fixed and alone and not first.is_tuple else None


def starts(loop: For) -> list[Block]:
    """Return the blocks in *loop* whose init stores to a buffer from outside."""
    private = _private(loop)
    blocks = [n for n in walk(loop.body) if isinstance(n, Block)]
    return [b for b in blocks if isinstance(b.init, Store) and b.init.buffer not in private]


def _private(loop: For) -> set[AnyBuffer]:
    return {n.buffer for n in walk(loop.body) if isinstance(n, Alloc)}


def _exists(func: Func, loop: For, reduction: Reduction) -> bool:
    """Whether the element of *reduction* is sure to exist, even where conditions are false.

    Proved if each index is 0 along an axis of length 1, or a loop around over the whole axis.
    """
    path = path_to(func, loop)
    values = path_values(node for node in path if isinstance(node, Block))
    ends: dict[Expr, Expr] = {x.var: x.end for x in path if isinstance(x, For) and from_zero(x)}
    extents = dense_extents(reduction.buffer)
    for index, extent in zip(reduction.indices, extents, strict=True):
        place = None if index is None else plain(substitute(index, values))
        is_zero = isinstance(place, Const) and place.value == 0
        end = const(1) if is_zero else ends.get(place)  # type: ignore[arg-type]
        if end is None or not same_value(end, extent):
            return False
    return True


def dense_extents(buffer: AnyBuffer) -> tuple[Expr | None, ...]:
    """Return the extent of each axis of *buffer*; None for all but dense_fixed axes."""
    if isinstance(buffer, Buffer):
        return tuple(cast(extent, int64) for extent in buffer.shape)
    dense = (axis.length if axis.kind == "dense_fixed" else None for axis in buffer.axes)
    return tuple(None if length is None else cast(length, int64) for length in dense)


def _at_most(func: Func, loop: For) -> Expr | None:
    """Return the trip count of *loop*, or a constant bound of it; None if neither is known."""
    lets = (n for n in path_to(func, loop) if isinstance(n, Let))
    end = {let.var: let.value for let in lets}.get(loop.end, loop.end)  # type: ignore[call-overload]
    if isinstance(end, BinOp) and end.op == "min" and isinstance(end.rhs, Const):
        return end.rhs
    return None if any(read_by(end)) or variables(end) - {*func.params} else end


def _partial(loop: For, reduction: Reduction, names: Names, most: Expr) -> Stmt:
    dtype, op = accumulator(reduction.value.dtype), reduction.combiner
    wish = reduction.buffer.name
    parts = Buffer(names.unique(f"{wish}_parts"), None, (most,), dtype)
    part = Buffer(names.unique(f"{wish}_part"), None, (const(1),), dtype, "local")
    body = seq(
        Store(part, (ZERO,), identity(op, dtype)),
        _Into(reduction.buffer, part).rewrite(loop.body),
        Store(parts, (loop.var,), Load(part, (ZERO,))),
    )
    at = names.var(loop.var.name)
    place = BlockIter(names.var(f"v{at.name}"), loop.end, at, "R")
    so_far = cast(Load(reduction.buffer, reduction.indices), dtype)
    total = cast(combine(op, so_far, Load(parts, (place.var,))), reduction.buffer.dtype)
    store = Store(reduction.buffer, reduction.indices, total)
    block = Block(names.unique(f"{wish}_total"), (place,), (), (), None, store)
    add = For(at, ZERO, loop.end, block, span=loop.span)
    return Alloc(parts, annotate_regions(seq(loop.replace(body=Alloc(part, body)), add)))


class _Into(Rewriter):
    """Turns updates of *target* into updates of *part*."""

    def __init__(self, target: AnyBuffer, part: Buffer) -> None:
        self.target, self.part = target, part

    def visit_Store(self, store: Store) -> Node:
        """Return the update of the part."""
        reduction = as_reduction(store) if store.buffer is self.target else None
        if reduction is None:
            return store
        value = cast(reduction.value, self.part.dtype)
        so_far: Expr = Load(self.part, (ZERO,))
        op: Combiner = reduction.combiner
        return Store(self.part, (ZERO,), combine(op, so_far, value), span=store.span)
