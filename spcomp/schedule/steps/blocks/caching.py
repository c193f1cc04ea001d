"""In position space: the steps cache_read, reverse_cache_read and reverse_cache_write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.analysis.reduction import Reduction, as_reduction, combine
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import Alloc, Attrs, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nearby import prover_at
from spcomp.schedule.nests.nests import replace_stmt, runs_once
from spcomp.schedule.nests.places import Place, unconditional_nodes
from spcomp.schedule.nests.sites import (
    Site,
    bound_in,
    check_concurrent,
    check_scope,
    nth_buffer,
    parts_of,
    refusal,
    site_of,
)
from spcomp.schedule.steps.base import Makes, Step


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """``for i: s(B[i])  ->  for a: B_local[a] = B[a]; for i: s(B_local[i])``.

    The buffer number *read_buffer_index* of those that *block* reads is copied before its nest. The
    copy has the axes of the buffer; where an index is the same throughout the nest, only that slice
    is copied. Legal where the nest does not write the buffer. Source: TVM's cache_read.
    """

    name: ClassVar[str] = "cache_read"
    makes: ClassVar[Makes] = "blocks"
    block: str
    read_buffer_index: int
    storage_scope: str = "local"

    def plan(self, func: Func) -> Func:
        """Return *func* with the copy; only that shows whether loops may still run at once."""
        site, buffer = _read_buffer(self, func)
        span = site.block.span
        if any(isinstance(n, Search) and n.buffer is buffer for n in parts_of(site.block)):
            raise refusal(self, f"{buffer.name} is searched", span)
        if isinstance(buffer, SparseBuffer) and buffer.extra_storage:
            hint = "reverse_cache_read copies the element that each iteration reads"
            why = f"{buffer.name} says where fibers begin, one more than its axes have places for"
            raise refusal(self, why, span, hint)
        names = Names(func)
        local = _copy_buffer(
            buffer, names.unique(f"{buffer.name}_{_identifier(self.storage_scope)}"), self
        )
        copy = _Copy(self, func, site, buffer, local, names).build()
        block = _Swap(buffer, local).inside(site.block)
        root = _replace_block(site, annotate_regions(block))
        result = replace_stmt(func, site.root, Alloc(local, seq(copy, root)))
        return check_concurrent(self, func, result, span)


def _identifier(scope: str) -> str:
    return scope.replace(".", "_")


def _copy_buffer(buffer: AnyBuffer, name: str, step: CacheRead) -> AnyBuffer:
    """Return a local buffer with the axes, or shape, of *buffer*; dense if all axes are roots."""
    if isinstance(buffer, SparseBuffer):
        if all(axis.parent is None for axis in buffer.axes):
            shape = tuple(cast(axis.length, int64) for axis in buffer.axes)
            return Buffer(name, None, shape, buffer.dtype, step.storage_scope)
        return SparseBuffer(name, None, buffer.axes, buffer.dtype, step.storage_scope, buffer.fill)
    return Buffer(name, None, buffer.shape, buffer.dtype, step.storage_scope)


def _replace_block(site: Site, block: Stmt) -> Stmt:
    """Return the nest at *site* with *block* in place of its block."""
    return Replace(site.block, block).rewrite(site.root)


def _read_buffer(step: CacheRead | ReverseCacheRead, func: Func) -> tuple[Site, AnyBuffer]:
    """Return the block's site and the buffer to copy; raises ScheduleError if it cannot be."""
    check_scope(step, step.storage_scope)
    site = site_of(func, step.block, step)
    span = site.block.span
    buffer = nth_buffer(step, site.block, step.read_buffer_index, span, writes=False)
    if memory_of(buffer) in writes_of(site.root):
        raise refusal(step, f"{buffer.name} is written in the nest of {site.block.name}", span)
    init = site.block.init
    if init is not None and site.goes_on and memory_of(buffer) in reads_of(init):
        raise refusal(step, f"an init that runs before the nest reads {buffer.name}", span)
    return site, buffer


class _Swap(Rewriter):
    """Replaces accesses to *buffer* by accesses to *local*; *place*: at these indices.

    Without *place* the indices stay, and only reads are replaced.
    """

    def __init__(
        self, buffer: AnyBuffer, local: AnyBuffer, place: tuple[Expr, ...] | None = None
    ) -> None:
        self.buffer, self.local, self.place = buffer, local, place

    def inside(self, block: Block) -> Block:
        """Return *block* with the swap in its init and body, but not in its iters and condition."""
        init = None if block.init is None else self.rewrite(block.init)
        return block.replace(init=init, body=self.rewrite(block.body))

    def visit_Load(self, load: Load) -> Node:
        if load.buffer is not self.buffer:
            return self.visit_Node(load)
        if self.place is not None:
            return load.replace(buffer=self.local, indices=self.place)
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        return new.replace(buffer=self.local)

    def visit_Store(self, store: Store) -> Node:
        value = self.rewrite(store.value)
        if store.buffer is not self.buffer or self.place is None:
            return self.visit_Node(store)
        return store.replace(buffer=self.local, indices=self.place, value=value)


class _Copy:
    """The nest that fills the copy of a cache_read, axis by axis."""

    def __init__(
        self, step: Step, func: Func, site: Site, source: AnyBuffer, local: AnyBuffer, names: Names
    ) -> None:
        self.step, self.func, self.site, self.names = step, func, site, names
        self.source, self.local = source, local
        self.aux = Auxiliary.of(func)
        self.loops: list[For] = []
        self.iters: list[BlockIter] = []
        self.places: dict[Axis, Pos] = {}

    def build(self) -> Stmt:
        """Return the nest."""
        indices: list[Expr | None] = []
        inside = prover_at(self.func, self.site.above)
        for k, fixed in enumerate(self._fixed()):
            extent = self._extent(k)
            if fixed is not None and not (
                inside(BinOp("<=", ZERO, fixed)) and inside(BinOp("<", fixed, extent))
            ):
                fixed = None
            if fixed is None:
                loop = self.names.var(f"ax{k}")
                iter_var = self.names.var(f"v{loop.name}")
                self.loops.append(For(loop, ZERO, extent, seq()))
                outside = {it.var: it.value for it in self.iters}
                self.iters.append(BlockIter(iter_var, substitute(extent, outside), loop))
                fixed = iter_var
            indices.append(fixed)
            if isinstance(self.source, SparseBuffer):
                axis = self.source.axes[k]
                above = None if axis.parent is None else self.places[axis.parent]
                self.places[axis] = Pos(axis, above, relative=fixed)
        move = Store(self.local, tuple(indices), Load(self.source, tuple(indices)))
        name = self.names.unique(f"{self.site.block.name}_load")
        outside = {iter_var.var: iter_var.value for iter_var in self.iters}
        body: Stmt = annotate_regions(Block(name, tuple(self.iters), (), (), None, move))
        for around in reversed(self.loops):
            body = around.replace(end=substitute(around.end, outside), body=body)
        return body

    def _fixed(self) -> list[Expr | None]:
        """Return the indices that all accesses share throughout the nest; None: copy all."""
        inside = self.site.bound | {it.var for it in self.site.block.iters}
        inside |= bound_in(self.site.block)
        loads = [n for n in parts_of(self.site.block) if isinstance(n, Load)]
        accesses = [n.indices for n in loads if n.buffer is self.source]
        fixed: list[Expr | None] = []
        for indices in zip(*accesses, strict=True):
            first = indices[0]
            steady = first is not None and self._is_steady(first, inside)
            same = all(expr_equal(first, index) for index in indices)
            relative = all(None not in access for access in accesses)
            fixed.append(first if steady and same and relative else None)
        return fixed

    def _is_steady(self, index: Expr, inside: set[Var]) -> bool:
        """Whether *index* is the same throughout the nest, and can be evaluated before it."""
        if variables(index) & inside:
            return False
        reads = [n for n in walk(index) if isinstance(n, Load | Search)]
        if not reads:
            return isinstance(index, Var | Const)
        parts = (*self.site.path, self.site.block, *parts_of(self.site.block))
        sure = not any(
            isinstance(n, If | Select | While) or (isinstance(n, Block) and n.where is not None)
            for n in parts
        )
        return sure and not reads_of(index) & writes_of(self.site.root)

    def _extent(self, k: int) -> Expr:
        if isinstance(self.source, Buffer):
            return cast(self.source.shape[k], int64)
        axis = self.source.axes[k]
        above = None if axis.parent is None else self.places[axis.parent]
        if not self.aux.knows_fibers(axis):
            why = f"{self.func.name} has no buffer of {axis.name}'s fibers"
            raise refusal(self.step, why, self.site.block.span)
        return self.aux.size(axis, above)


@dataclass(frozen=True, slots=True)
class ReverseCacheRead(Step):
    """``for i, j: s(B[J[i, j]])  ->  for i, j: B_local[j] = B[J[i, j]]; for i, j: s(B_local[j])``.

    As cache_read, but the copy is indexed by the iters of *block* that pick the element, in the
    order of the block or of *dim_order* (numbers of iters), and is made in copies of their loops.
    Legal where the block always reads the buffer, at one index, which is a place of it even where
    loops that the copies lack are empty. Source: SparseTIR's reverse_cache_read.
    """

    name: ClassVar[str] = "reverse_cache_read"
    makes: ClassVar[Makes] = "blocks"
    block: str
    read_buffer_index: int
    storage_scope: str = "local"
    dim_order: tuple[int, ...] = ()

    def plan(self, func: Func) -> Func:
        """Return *func* with the copy; only that shows whether loops may still run at once."""
        site, buffer = _read_buffer(self, func)
        place = Place(self, func, site, buffer)
        if self.dim_order:
            place.reordered(self.dim_order)
        place.check_reached()
        names = Names(func)
        local = place.local(names, self.storage_scope)
        load = place.copy(names, "_load", local, lambda there, here: store_at(here, there))
        block = _Swap(buffer, local, place.index).inside(site.block)
        root = _replace_block(site, annotate_regions(block))
        result = replace_stmt(func, site.root, Alloc(local, seq(load, root)))
        return check_concurrent(self, func, result, site.block.span)


@dataclass(frozen=True, slots=True)
class ReverseCacheWrite(Step):
    """``for i, j: W[I[i]] += x  ->  for i, j: t[i] += x, t from 0; for i: W[I[i]] += t[i]``.

    What *block* writes to its buffer number *write_buffer_index* goes to a local copy, indexed by
    the iters that pick the element. Copies of their loops then write it back: combined with the
    old value, by the block's own operation, if the block only updates; as it is if the block has
    an init. A permission ``atomic`` moves to the write back. Legal where nothing else in the nest
    touches the buffer. Source: SparseTIR's reverse_cache_write.
    """

    name: ClassVar[str] = "reverse_cache_write"
    makes: ClassVar[Makes] = "blocks"
    block: str
    write_buffer_index: int
    storage_scope: str = "local"
    dim_order: tuple[int, ...] = ()

    def plan(self, func: Func) -> Func:
        """Return *func* with the copy; only that shows whether loops may still run at once."""
        place = written_place(self, func, self.block, self.write_buffer_index)
        if self.dim_order:
            place.reordered(self.dim_order)
        return WriteBack(place, self.storage_scope, accumulates=True).build()


def written_place(step: Step, func: Func, block: str, index: int) -> Place:
    """Return the element of buffer number *index* that *block* writes.

    Raises ScheduleError if other statements in its nest touch the buffer.
    """
    site = _with_reduction(site_of(func, block, step))
    span = site.block.span
    buffer = nth_buffer(step, site.block, index, span, writes=True)
    accesses = {node for node in parts_of(site.block) if getattr(node, "buffer", None) is buffer}
    for node in walk(site.root):
        touches = isinstance(node, Load | Search | Store) and node not in accesses
        if touches and memory_of(node.buffer) is memory_of(buffer):  # type: ignore[attr-defined]
            raise refusal(step, f"{buffer.name} is touched elsewhere in the nest", span)
    return Place(step, func, site, buffer)


def _with_reduction(site: Site) -> Site:
    """Return *site* with a nest that has all loops of a reduction that starts in it."""
    above, inits = site.above, site.block.init is not None
    begin = 1 + max(
        (k for k, n in enumerate(above) if not isinstance(n, For | Let | Alloc | Seq)), default=-1
    )
    drivers = {v for i in site.block.iters if i.kind == "R" for v in variables(i.value)}
    reducing = (k for k, n in enumerate(above) if isinstance(n, For) and n.var in drivers)
    first = next(reducing, None)
    if not inits or first is None or first < begin:
        return site
    return Site(site.block, above[:first], (*above[first:], *site.path))


def store_at(target: Load, value: Expr) -> Store:
    """Return the store of *value* to the element that *target* reads."""
    return Store(target.buffer, target.indices, cast(value, target.buffer.dtype))


def starts_itself(block: Block, buffer: AnyBuffer) -> bool:
    """Whether the init of *block* always stores an element of *buffer*."""
    nodes = () if block.init is None else unconditional_nodes(block.init)
    return any(isinstance(n, Store) and n.buffer is buffer for n in nodes)


class WriteBack:
    """A block whose updates go to a local copy, with the nests that fill it and write it back.

    *accumulates*: a copy of a pure update starts from the neutral element; it is combined with the
    old value at the end.
    """

    def __init__(self, place: Place, scope: str, *, accumulates: bool) -> None:
        self.place, self.scope = place, scope
        self.block = block = place.site.block
        self.dropped = {loop.var for loop in place.dropped if not runs_once(loop)}
        reducing = [i for i in block.iters if i.kind == "R"]
        self.drivers = {v for i in reducing for v in variables(i.value)}
        self.reduction = self._as_reduction() if accumulates else None
        self.fills = self.reduction is None and self._may_skip()
        self._check()

    def _as_reduction(self) -> Reduction | None:
        """Return how copies are combined with the old values; None: they replace these."""
        kept_vars = {loop.var for loop in self.place.kept}
        picked = {var for index in self.place.index for var in variables(index)}
        reduced = (i for i in self.block.iters if i.kind == "R" and i.var not in picked)
        if self.block.init is not None or self.place.site.drives(reduced):
            return None
        if not self.dropped <= self.drivers or self.drivers & kept_vars:
            return None
        reduction = as_reduction(self.block.body)
        return None if reduction is None or reduction.is_tuple else reduction

    def _may_skip(self) -> bool:
        """Whether the block may leave the element unchanged, or reads it first."""
        block, target = self.block, self.place.buffer
        if starts_itself(block, target):
            return not self.dropped <= self.drivers
        sure = any(
            isinstance(n, Store) and n.buffer is target for n in unconditional_nodes(block.body)
        )
        reads = any(isinstance(n, Load) and n.buffer is target for n in walk(block.body))
        return reads or not sure or bool(self.dropped)

    def _check(self) -> None:
        """Raise where a new order of writes to one element would change the result."""
        place = self.place
        if self.block.init is not None and place.site.goes_on:
            raise place.error("a reduction goes on outside the nest, and starts there")
        starts = starts_itself(self.block, place.buffer)
        if not starts or not self.dropped <= self.drivers:
            place.check_reached()
        for node in place.kept:
            if node.var not in place.direct:
                raise place.error(f"{node.var.name!r} changes which elements there are")
        if self.reduction is not None:
            if not place.picks_apart():
                raise place.error("two iterations share a place in the copy")
            return
        inner = [loop for loop in place.site.loops if loop.var in self.drivers]
        mixed = (
            any(loop in place.kept for loop in place.site.loops[place.site.loops.index(inner[0]) :])
            if inner
            else False
        )
        again = self.fills or (self.block.init is not None and mixed)
        if again and not place.is_injective():
            raise place.error(f"two iterations may write the same element of {place.buffer.name}")

    def build(self) -> Func:
        """Return the function with the copy."""
        place, block, func = self.place, self.block, self.place.func
        names = Names(func)
        local = place.local(names, self.scope)
        use = _Swap(place.buffer, local, place.index)
        init = None if block.init is None else use.rewrite(block.init)
        iters = block.iters
        if self.reduction is not None:
            init = Store(local, place.index, cast(self.reduction.identity[0], local.dtype))
            picked = {var for index in place.index for var in variables(index)}
            iters = tuple(i.replace(kind="S") if i.var in picked else i for i in iters)
        attrs = tuple(item for item in block.attrs if item[0] != "atomic")
        update = block.replace(iters=iters, init=init, body=use.rewrite(block.body), attrs=attrs)
        fill = None
        if self.fills:
            fill = place.copy(names, "_load", local, lambda there, here: store_at(here, there))
        copy_back = place.copy(names, "_store", local, self._store_back)
        root = _replace_block(place.site, annotate_regions(update))
        copy_back = _Annotate(tuple(item for item in block.attrs if item[0] == "atomic")).rewrite(
            copy_back
        )
        result = replace_stmt(func, place.site.root, Alloc(local, seq(fill, root, copy_back)))
        return check_concurrent(place.step, func, result, place.site.block.span)

    def _store_back(self, target: Load, local: Load) -> Store:
        if self.reduction is None:
            return store_at(target, local)
        return store_at(target, combine(self.reduction.combiner, target, local))


class _Annotate(Rewriter):
    def __init__(self, attrs: Attrs) -> None:
        self.attrs = attrs

    def visit_Block(self, block: Block) -> Node:
        return block.replace(attrs=(*block.attrs, *self.attrs)) if self.attrs else block
