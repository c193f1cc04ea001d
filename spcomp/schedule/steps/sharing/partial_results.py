"""The step that lets the iterations of a loop reduce into an element each: partial results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Combiner, Reduction, as_reduction, combine, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Let, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import plain
from spcomp.schedule.nests.nests import find_loop, replaced
from spcomp.schedule.nests.sites import bound_in, path_to, refusal
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.blocks.memory import accumulator


@dataclass(frozen=True, slots=True)
class PartialResults(Step):
    """``for c: s(W[e] op= x)  ->  for c: a = 0; s(a op= x); P[c] = a; for c: W[e] op= P[c]``.

    Each iteration of *loop* adds up by itself, whatever loops and other statements are in it, and
    the sums are added in order: the loop may then run in parallel, with the same result however
    many threads there are. Legal where all that it writes outside of itself is one element that is
    sure to be there, by updates of one associative kind, nothing else reads that, and how often the
    loop runs, at most, is known when the function is called. Sums are formed in another order.
    """

    name: ClassVar[str] = "partial_results"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with a partial result for each iteration."""
        loop = find_loop(func, self.loop, self, span)
        if not from_zero(loop) or loop.kind != "serial":
            raise refusal(self, "it is no serial loop from 0", span or loop.span)
        found = shared_update(loop)
        if found is None:
            why = "it does more than to reduce into one element"
            raise refusal(self, why, span or loop.span)
        if started := next(iter(starts(loop)), None):
            hint = f"decompose_reduction({started.name!r}, {self.loop!r})"
            raise refusal(self, "the reduction starts in it", span or loop.span, hint=hint)
        if not _exists(func, loop, found):
            why = f"an element of {found.buffer.name} may not be there if nothing is added to it"
            raise refusal(self, why, span or loop.span)
        most = _at_most(func, loop)
        if most is None:
            why = "how often it runs is not known when the function is called"
            raise refusal(self, why, span or loop.span, hint="split it into chunks")
        return replaced(func, loop, _partial(loop, found, Names(func), most))


def shared_update(loop: For) -> Reduction | None:
    """Return the reduction that is all that *loop* does to what is outside; None if it does more.

    Its element is the same for all iterations, and may start in the first.
    """
    private, inits = _private(loop), {block.init for block in starts(loop)}
    stores = [n for n in walk(loop.body) if isinstance(n, Store) and n.buffer not in private]
    stores = [store for store in stores if store not in inits]
    found = [as_reduction(store) for store in stores]
    if not found or None in found:
        return None
    first, *rest = (r for r in found if r is not None)
    same = (
        r.buffer is first.buffer
        and r.combiner == first.combiner
        and r.value.dtype == first.value.dtype
        and all(map(expr_equal, r.indices, first.indices))
        for r in rest
    )
    memory, inside = memory_of(first.buffer), bound_in(loop)
    reads = [n for n in _reads(loop) if memory_of(n.buffer) is memory]
    changed = {memory_of(n.buffer) for n in walk(loop.body) if isinstance(n, Alloc | Store)}
    fixed = not any(
        variables(i) & inside or any(memory_of(n.buffer) in changed for n in _reads(i))
        for i in first.indices
        if i is not None
    )
    alone = len(reads) == len(stores) and all(n.buffer is first.buffer for n in reads)
    return first if all(same) and fixed and alone and not first.is_tuple else None


def starts(loop: For) -> list[Block]:
    """Return the blocks in *loop* whose init stores an element that is outside."""
    private = _private(loop)
    blocks = [n for n in walk(loop.body) if isinstance(n, Block)]
    return [b for b in blocks if isinstance(b.init, Store) and b.init.buffer not in private]


def _private(loop: For) -> set[AnyBuffer]:
    return {n.buffer for n in walk(loop.body) if isinstance(n, Alloc)}


def _exists(func: Func, loop: For, found: Reduction) -> bool:
    """Whether the element of *found* is there, whatever the conditions in *loop* say.

    Understood: constants, and loops around it over a whole axis.
    """
    values: dict[Var, Expr] = {}
    ends: dict[Expr, Expr] = {}
    for node in path_to(func, loop):
        if isinstance(node, Block):
            values |= {var: substitute(value, values) for var, value in node.values.items()}
        elif isinstance(node, For) and from_zero(node):
            ends[node.var] = node.end
    extents = _extents(found.buffer)
    for index, extent in zip(found.indices, extents, strict=True):
        place = None if index is None else plain(substitute(index, values))
        one = isinstance(place, Const) and place.value == 0
        end = const(1) if one else ends.get(place)  # type: ignore[arg-type]
        if end is None or extent is None or not expr_equal(simplify(end), simplify(extent)):
            return False
    return True


def _extents(buffer: AnyBuffer) -> tuple[Expr | None, ...]:
    """Return how many elements there are along each axis; None where fibers are stored."""
    if isinstance(buffer, Buffer):
        return tuple(cast(extent, int64) for extent in buffer.shape)
    dense = (axis.length if axis.kind == "dense_fixed" else None for axis in buffer.axes)
    return tuple(None if length is None else cast(length, int64) for length in dense)


def _reads(node: Node) -> Iterator[Load | Search]:
    return (n for n in walk(node) if isinstance(n, (Load, Search)))


def _at_most(func: Func, loop: For) -> Expr | None:
    """Return how often *loop* runs, or a constant bound of that; None if neither is known."""
    lets = (n for n in path_to(func, loop) if isinstance(n, Let))
    end = {let.var: let.value for let in lets}.get(loop.end, loop.end)  # type: ignore[call-overload]
    if isinstance(end, BinOp) and end.op == "min" and isinstance(end.rhs, Const):
        return end.rhs
    return None if any(_reads(end)) or variables(end) - {*func.params} else end


def _partial(loop: For, found: Reduction, names: Names, most: Expr) -> Stmt:
    dtype, op = accumulator(found.value.dtype), found.combiner
    wish = found.buffer.name
    parts = Buffer(names.unique(f"{wish}_parts"), None, (most,), dtype)
    part = Buffer(names.unique(f"{wish}_part"), None, (const(1),), dtype, "local")
    body = seq(
        Store(part, (ZERO,), identity(op, dtype)),
        _Into(found.buffer, part).rewrite(loop.body),
        Store(parts, (loop.var,), Load(part, (ZERO,))),
    )
    at = names.var(loop.var.name)
    so_far = cast(Load(found.buffer, found.indices), dtype)
    total = cast(combine(op, so_far, Load(parts, (at,))), found.buffer.dtype)
    add = For(at, ZERO, loop.end, Store(found.buffer, found.indices, total), span=loop.span)
    return Alloc(parts, annotate_regions(seq(loop.replace(body=Alloc(part, body)), add)))


class _Into(Rewriter):
    """Turns updates of *target* into updates of *part*."""

    def __init__(self, target: AnyBuffer, part: Buffer) -> None:
        self.target, self.part = target, part

    def visit_Store(self, store: Store) -> Node:
        """Return the update of the part."""
        found = as_reduction(store) if store.buffer is self.target else None
        if found is None:
            return store
        value = cast(found.value, self.part.dtype)
        own: Expr = Load(self.part, (ZERO,))
        op: Combiner = found.combiner
        return Store(self.part, (ZERO,), combine(op, own, value), span=store.span)
