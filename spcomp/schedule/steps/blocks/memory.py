"""In position space: the steps cache_write, set_scope and storage_align."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import accumulator, as_reduction, combine
from spcomp.ir.analysis.vectors import conditions_of
from spcomp.ir.arith.injectivity import element_key
from spcomp.ir.arith.simplify import injective, simplify
from spcomp.ir.axis import AnyBuffer, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Stmt, Store, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nearby import prover_at
from spcomp.schedule.nests.nests import chain, find_loop, replace_stmt
from spcomp.schedule.nests.places import are_checked, may_be_empty
from spcomp.schedule.nests.sites import (
    check_concurrent,
    check_scope,
    nth_buffer,
    path_to,
    refusal,
    site_of,
)
from spcomp.schedule.steps.base import Makes, Step, names_hint
from spcomp.schedule.steps.blocks.caching import WriteBack, starts_itself, written_place

WIDEST = 2**16  # elements that a stride may be rounded up to
MAX_ELEMENTS = 1024  # more than that is no register tile, and would not fit a stack frame either


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """``for k: for j: W[k] op= x  ->  for k: for j: t[k] op= x; for k: W[k] = t[k]``.

    What *block* writes to its buffer number *buffer_index* goes to a local copy, which is written
    back after the nest of the block. The copy starts from the init of the block, or from the old
    values. *at* names a loop nested perfectly around the block: ``for k: t = W[k] or init; for j: t
    op= x; W[k] = t``. The copy then holds only the element or tile that is updated inside that
    loop, and 16-bit floats are accumulated in 32 bits. Legal where nothing else in the nest (in
    *at*) touches the buffer. With *at*, loops that pick the element must have constant trip counts,
    and elements stored under a condition must be proved to lie in the buffer even where it is
    false. Source: TVM's cache_write, with reverse_compute_at for *at*.
    """

    name: ClassVar[str] = "cache_write"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buffer_index: int = 0
    scope: str = "local"
    at: str = ""

    def plan(self, func: Func) -> Func:
        """Return the new program, which shows whether loops may still run at once."""
        check_scope(self, self.scope)
        if not self.at:
            place = written_place(self, func, self.block, self.buffer_index)
            return WriteBack(place, self.scope, accumulates=False).build()
        outer = find_loop(func, self.at, self)
        loops, block = chain(outer)
        assert isinstance(func, PosFunc)
        if not isinstance(block, Block) or block.name != self.block:
            blocks = [n.name for n in walk(func.body) if isinstance(n, Block)]
            why = f"{self.at!r} is not nested perfectly around the block"
            raise self.error(why, outer, names_hint(blocks, "blocks"))
        buffer = nth_buffer(self, block, self.buffer_index, outer.span, writes=True)
        tile = _Tile(self, outer, block, loops[1:])
        if tile.target is not buffer:
            raise self.error(f"the update is one of {tile.target.name}, not {buffer.name}", block)
        if tile.may_be_wrong(func):
            why = f"an index of {tile.target.name} may be wrong where no iteration runs"
            raise self.error(why, block)
        if not isinstance(block.body, Store) and not tile.is_there(func):
            raise self.error("what is stored under a condition is not proved to be there", block)
        after = replace_stmt(func, outer, outer.replace(body=tile.build(Names(func))))
        return check_concurrent(self, func, after, block.span)


@dataclass(frozen=True, slots=True)
class SetScope(Step):
    """``X = alloc_buffer(..., scope="global")  ->  X = alloc_buffer(..., scope="shared")``.

    X is buffer number *buffer_index* of those that *block* writes. Legal where the program
    allocates it. On a CPU all scopes are memory of the function. Source: TVM's set_scope.
    """

    name: ClassVar[str] = "set_scope"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buffer_index: int
    storage_scope: str

    def plan(self, func: Func) -> AnyBuffer:
        """Return the buffer."""
        check_scope(self, self.storage_scope)
        buffer, _ = _local_buffer(self, func, self.block, self.buffer_index)
        return buffer

    def rewrite(self, func: Func, plan: AnyBuffer) -> Func:
        """Return *func* with the buffer in that scope."""
        return _exchange_buffer(func, plan, plan.replace(scope=self.storage_scope))


@dataclass(frozen=True, slots=True)
class StorageAlign(Step):
    """``X = alloc_buffer((m, 30))  ->  X = alloc_buffer((m, 32))``, at axis 0, factor 16, offset 0.

    The distance in memory of two neighbours along *axis* becomes *offset* modulo *factor*, in
    elements, by padding the next dimension. X is buffer number *buffer_index* of those that *block*
    writes. Legal where the program allocates it, it is dense, the axis is not the last, and the
    dimensions after the next one are constants that allow it. A later step that allocates the
    buffer anew in a loop drops the padding. Source: TVM's storage_align.
    """

    name: ClassVar[str] = "storage_align"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buffer_index: int
    axis: int
    factor: int
    offset: int = 0

    def plan(self, func: Func) -> tuple[Buffer, tuple[Expr, ...]]:
        """Return the buffer, and its padded shape."""
        buffer, span = _local_buffer(self, func, self.block, self.buffer_index)
        if not isinstance(buffer, Buffer) or buffer.strides is not None:
            raise refusal(self, f"{buffer.name} is not a dense buffer", span)
        axis = self.axis + len(buffer.shape) if self.axis < 0 else self.axis
        if not 0 <= axis < len(buffer.shape) - 1:
            raise refusal(self, f"no dimension of {buffer.name} follows axis {self.axis}", span)
        if not 0 <= self.offset < self.factor:
            raise refusal(self, "the offset must lie between 0 and the factor", span)
        if self.factor > WIDEST:
            raise refusal(self, f"the factor is larger than {WIDEST} elements", span)
        shape = list(buffer.shape)
        shape[axis + 1] = self._padded(shape[axis + 1], shape[axis + 2 :], span)
        return buffer, tuple(shape)

    def rewrite(self, func: Func, plan: tuple[Buffer, tuple[Expr, ...]]) -> Func:
        """Return *func* with the buffer padded."""
        buffer, shape = plan
        return _exchange_buffer(func, buffer, buffer.replace(shape=shape))

    def _padded(self, extent: Expr, behind: list[Expr], span: Span | None) -> Expr:
        """Return the least extent, at least *extent*, with which the distance is right."""
        size = 1
        for other in behind:
            if not isinstance(other, Const):
                raise refusal(self, "a dimension behind it is not a constant", span)
            size *= int(other.value)
        steps = [k for k in range(self.factor) if k * size % self.factor == self.offset]
        period = self.factor // gcd(size, self.factor)
        if not steps:
            raise refusal(
                self, f"no multiple of {size} is {self.offset} modulo {self.factor}", span
            )
        room = binary("%", binary("-", const(steps[0]), cast(extent, int64)), period)
        return simplify(binary("+", cast(extent, int64), room))


def _local_buffer(step: Step, func: Func, block: str, index: int) -> tuple[AnyBuffer, Span | None]:
    """Return buffer number *index* that *block* writes, allocated here, and the block's span."""
    site = site_of(func, block, step)
    buffer = nth_buffer(step, site.block, index, site.block.span, writes=True)
    if buffer.data is not None:
        raise refusal(step, f"{buffer.name} is an argument", site.block.span)
    return buffer, site.block.span


def _exchange_buffer(func: Func, old: AnyBuffer, new: AnyBuffer) -> Func:
    return func if old is new else func.replace(body=_Exchange(old, new).rewrite(func.body))


class _Exchange(Rewriter):
    """Replaces the buffer *old* by *new*, wherever it occurs."""

    def __init__(self, old: AnyBuffer, new: AnyBuffer) -> None:
        self.old, self.new = old, new

    def visit_Node(self, node: Node) -> Node:
        new = super().visit_Node(node)
        for name in ("buffer", "indices"):
            if getattr(new, name, None) is self.old:
                new = new.replace(**{name: self.new})
        return new


class _Tile:
    """The local buffer of a cache_write with *at*, and the block that then uses it."""

    def __init__(self, step: CacheWrite, outer: For, block: Block, loops: list[For]) -> None:
        self.step, self.outer, self.block, self.loops = step, outer, block, loops
        store = sole_store(block)
        if store is None:
            raise self.error("the block does not store one element")
        self.target: AnyBuffer = store.buffer
        self.indices = store.indices
        key = fingerprint(self.indices)
        for node in (n for part in (block.body, block.init) if part for n in walk(part)):
            touches = isinstance(node, (Load, Store, Search)) and self._is_target(node.buffer)
            if touches and not self._is_element(node, key):
                raise self.error(f"{self.target.name} is accessed at another place too")
        if any(isinstance(n, (Load, Search)) and self._is_target(n.buffer) for n in self._around()):
            raise self.error(f"a condition or a range reads {self.target.name}")
        inside = {loop.var for loop in loops}
        for it in block.iters:
            if it.kind == "R" and block.init and not variables(it.value) <= inside:
                raise self.error("a reduction goes on outside the loop, and starts there")
        self.spatial = self._spatial()
        self._check_guard()

    def _is_target(self, buffer: AnyBuffer) -> bool:
        """Whether *buffer* is the memory of the target, under whatever name."""
        return memory_of(buffer) is memory_of(self.target)

    def _is_element(self, node: Node, key: object) -> bool:
        """Whether *node* accesses the element of the target whose indices have this *key*."""
        direct = isinstance(node, (Load, Store)) and node.buffer is self.target
        return direct and fingerprint(node.indices) == key  # type: ignore[attr-defined]

    def _around(self) -> Iterator[Node]:
        """Yield the nodes evaluated around the body: the ranges of loops, iters and the guard."""
        parts = [end for loop in self.loops for end in (loop.begin, loop.end)]
        for part in (*parts, *self.block.iters, self.block.where):
            if part is not None:
                yield from walk(part)

    def is_there(self, func: Func) -> bool:
        """Whether all elements of the tile are proved to be in the buffer, in any case."""
        holds = prover_at(func, (*path_to(func, self.outer), *self.loops, self.block))
        buffer = self.target
        if isinstance(buffer, SparseBuffer) and any(axis.parent for axis in buffer.axes):
            return False  # how long fibers are is data
        sizes = (
            [a.length for a in buffer.axes] if isinstance(buffer, SparseBuffer) else buffer.shape
        )
        for index, size in zip(self.indices, sizes, strict=True):
            if index is None:
                return False
            at = cast(index, int64)
            if not (holds(BinOp("<=", ZERO, at)) and holds(BinOp("<", at, cast(size, int64)))):
                return False
        return True

    def _check_guard(self) -> None:
        """Raise if the guard of an element depends on a loop that reduces."""
        lost = {loop.var for loop in self.loops} - {loop.var for loop in self.spatial}
        where = self.block.where
        if where is not None and variables(substitute(where, self.block.values)) & lost:
            raise self.error("the condition of the block depends on what is reduced")

    def may_be_wrong(self, func: Func) -> bool:
        """Whether the tile may have an element that is none, where loops that reduce are empty."""
        indices = (None if i is None else substitute(i, self.block.values) for i in self.indices)
        empty = [loop for loop in self.loops if loop not in self.spatial]
        path = (*path_to(func, self.outer), *self.loops)
        unchecked = self._may_skip() and not are_checked(func, indices)
        return unchecked and may_be_empty(func, path, empty)

    def _may_skip(self) -> bool:
        """Whether an element may keep its value: it has no init, or a loop may not run at all."""
        iters = self.block.iters
        drivers = {v for i in iters if i.kind == "R" for v in variables(i.value)}
        others = {loop.var for loop in self.loops if loop not in self.spatial}
        return not starts_itself(self.block, self.target) or not others <= drivers

    def error(self, why: str) -> ScheduleError:
        return self.step.error(why, self.block)

    def _spatial(self) -> list[For]:
        """Return the loops inside that pick the element; the others reduce into it."""
        used: set[Var] = set()
        values = self.block.values
        for index in self.indices:
            if index is not None:
                used |= variables(substitute(index, values))
        reduced = {v for i in self.block.iters if i.kind == "R" for v in variables(i.value)}
        if used & reduced & {loop.var for loop in self.loops}:
            raise self.error("which element is stored depends on what is reduced")
        spatial = [loop for loop in self.loops if loop.var in used]
        size = 1
        for loop in spatial:
            if not isinstance(loop.end, Const):
                raise self.error(f"the trip count of {loop.var.name!r} is not a constant")
            size *= int(loop.end.value)
        if size > MAX_ELEMENTS:
            raise self.error(f"a tile of {size} elements is too large")
        inside = {loop.var for loop in self.loops}
        for loop in spatial:
            if (variables(loop.begin) | variables(loop.end)) & inside:
                raise self.error(f"the range of {loop.var.name!r} is not the same throughout")
        place = tuple(None if i is None else substitute(i, values) for i in self.indices)
        ranges = {loop.var: (loop.begin, loop.end) for loop in spatial}
        key = element_key(self.target, place)
        if not all(injective(key, loop.var, ranges) for loop in spatial):
            raise self.error("two places of the tile may be one element")
        return spatial

    def build(self, names: Names) -> Stmt:
        """Return the body of the loop: the tile, filled, updated, written back."""
        shape = tuple(loop.end for loop in self.spatial) or (const(1),)
        dtype = accumulator(self.target.dtype)
        scope = self.step.scope
        name = names.unique(f"{self.target.name}_{scope.replace('.', '_')}")
        local = Buffer(name, None, shape, dtype, scope)
        tile_iters = [BlockIter(names.var(f"v{x.var.name}"), x.end, x.var) for x in self.spatial]
        place: tuple[Expr, ...] = tuple(i.var for i in tile_iters) or (ZERO,)
        use = _UseLocal(self.target, local, place)
        block = self.block
        update = block.replace(
            iters=(*block.iters, *tile_iters),
            init=None if block.init is None else use.rewrite(block.init),
            body=use.rewrite(block.body),
            reads=tuple(r for r in block.reads if r.buffer is not self.target),
            writes=(),
        )
        body: Stmt = update
        for loop in reversed(self.loops):
            body = loop.replace(body=body)
        fill = None
        if self._may_skip():
            fill = self._copy(names, "_load", local, reads=True)
        return Alloc(local, seq(fill, body, self._copy(names, "_store", local, reads=False)))

    def _copy(self, names: Names, suffix: str, local: Buffer, *, reads: bool) -> Stmt:
        """Return a nest that copies the tile from the buffer, or back."""
        fresh = {x.var: names.var(x.var.name) for x in self.spatial}
        rename: dict[Var, Expr] = dict(fresh)
        iters: list[BlockIter] = []
        values: dict[Var, Expr] = {}
        inside = {loop.var for loop in self.loops} - set(fresh)
        used = {v for i in self.indices if i is not None for v in variables(i)}
        for it in self.block.iters:
            if (it.kind == "S" or it.var in used) and not variables(it.value) & inside:
                var = names.var(it.var.name)
                values[it.var] = var
                iters.append(it.replace(var=var, value=substitute(it.value, rename)))
        place: list[Expr] = []
        for loop in self.spatial:
            var = names.var(f"v{loop.var.name}")
            iters.append(BlockIter(var, loop.end, fresh[loop.var]))
            place.append(var)
        where = self.block.where
        if where is not None:
            where = substitute(substitute(where, rename), values)
        at = tuple(place) or (ZERO,)
        outside = tuple(
            None if i is None else substitute(substitute(i, rename), values) for i in self.indices
        )
        element, copy_element = Load(self.target, outside), Load(local, at)
        if reads:
            move = Store(local, at, cast(element, local.dtype))
        else:
            move = Store(self.target, outside, cast(copy_element, self.target.dtype))
        name = names.unique(f"{self.block.name}{suffix}")
        body: Stmt = Block(name, tuple(iters), (), (), None, move, where)
        for loop in reversed(self.spatial):
            body = loop.replace(var=fresh[loop.var], body=body)
        return body


def sole_store(block: Block) -> Store | None:
    """Return the store that is all of *block*, perhaps under conditions; None if it has more."""
    _, body = conditions_of(block.body)
    return body if isinstance(body, Store) else None


class _UseLocal(Rewriter):
    def __init__(self, target: AnyBuffer, local: Buffer, place: tuple[Expr, ...]) -> None:
        self.target, self.local, self.place = target, local, place

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        if load.buffer is not self.target:
            return new
        return cast(Load(self.local, self.place), load.buffer.dtype)

    def visit_Store(self, store: Store) -> Node:
        new = self.visit_Node(store)
        assert isinstance(new, Store)
        if store.buffer is not self.target:
            return new
        value = cast(new.value, self.local.dtype)
        step = as_reduction(store) if self.local.dtype != self.target.dtype else None
        if step is not None and len(step.values) == 1:  # not rounded at each step
            term = cast(self.rewrite(step.value), self.local.dtype)
            value = combine(step.combiner, Load(self.local, self.place), term)
        return Store(self.local, self.place, value, span=store.span)
