"""Steps that give a block a copy of what it touches: cache_read and the reverse steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.analysis.reduction import Reduction, as_reduction, combine
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, Attrs, For, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import reads_of, writes_of
from spcomp.schedule.nests.nearby import follows
from spcomp.schedule.nests.nests import Replace, replaced
from spcomp.schedule.nests.places import Place, unconditional
from spcomp.schedule.nests.sites import (
    Site,
    bound_in,
    check_scope,
    kept_apart,
    nth_buffer,
    parts_of,
    refusal,
    site_of,
)
from spcomp.schedule.steps.base import Makes, Step


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """``for i: s(B[i])  ->  for a: B_local[a] = B[a]; for i: s(B_local[i])``.

    What *block* reads of its buffer number *read_buffer_index* is copied before its nest; the copy
    has the axes of the buffer, and only the part whose indices the nest leaves alone is copied.
    Legal where the nest does not write the buffer. Source: TVM's cache_read.
    """

    name: ClassVar[str] = "cache_read"
    makes: ClassVar[Makes] = "blocks"
    block: str
    read_buffer_index: int
    storage_scope: str = "local"

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the copy, in a nest of its own."""
        site, buffer, span = _what_is_read(self, func, span)
        if any(isinstance(n, Search) and n.buffer is buffer for n in parts_of(site.block)):
            raise refusal(self, f"{buffer.name} is searched", span)
        if isinstance(buffer, SparseBuffer) and buffer.extra_storage:
            hint = "reverse_cache_read copies the element that each iteration reads"
            why = f"{buffer.name} says where fibers begin, one more than its axes have places for"
            raise refusal(self, why, span, hint)
        names = Names(func)
        local = _like(buffer, names.unique(f"{buffer.name}_{_word(self.storage_scope)}"), self)
        copy = _Copy(self, func, site, buffer, local, names).build(span)
        block = _Swap(buffer, local).inside(site.block)
        root = _replaced_in(site, annotate_regions(block))
        made = replaced(func, site.root, Alloc(local, seq(copy, root)))
        return kept_apart(self, func, made, span)


def _word(scope: str) -> str:
    return scope.replace(".", "_")


def _like(buffer: AnyBuffer, name: str, step: CacheRead) -> AnyBuffer:
    """Return an allocated buffer of the same axes, or extents; a dense one where all are dense."""
    if isinstance(buffer, SparseBuffer):
        if all(axis.parent is None for axis in buffer.axes):
            shape = tuple(cast(axis.length, int64) for axis in buffer.axes)
            return Buffer(name, None, shape, buffer.dtype, step.storage_scope)
        return SparseBuffer(name, None, buffer.axes, buffer.dtype, step.storage_scope, buffer.fill)
    return Buffer(name, None, buffer.shape, buffer.dtype, step.storage_scope)


def _replaced_in(site: Site, block: Stmt) -> Stmt:
    """Return the nest with *block* in the place of the block."""
    return Replace(site.block, block).rewrite(site.root)


def _what_is_read(
    step: CacheRead | ReverseCacheRead, func: Func, span: Span | None
) -> tuple[Site, AnyBuffer, Span | None]:
    """Return the block, the buffer of it that can be read from a copy, and where to point at."""
    check_scope(step, step.storage_scope, span)
    site = site_of(func, step.block, step, span)
    span = span or site.block.span
    buffer = nth_buffer(step, site.block, step.read_buffer_index, span, writes=False)
    if memory_of(buffer) in writes_of(site.root):
        raise refusal(step, f"{buffer.name} is written in the nest of {site.block.name}", span)
    init = site.block.init
    if init is not None and site.goes_on and memory_of(buffer) in reads_of(init):
        raise refusal(step, f"an init that runs before the nest reads {buffer.name}", span)
    return site, buffer, span


class _Swap(Rewriter):
    """Reads, and writes, *local* in the place of *buffer*; *place*: at these indices."""

    def __init__(
        self, buffer: AnyBuffer, local: AnyBuffer, place: tuple[Expr, ...] | None = None
    ) -> None:
        self.buffer, self.local, self.place = buffer, local, place

    def inside(self, block: Block) -> Block:
        """Return *block* with the swap in what it does; which iteration it is stays as it is."""
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
        self.aux = Auxiliary(func)
        declared = {b.data: b for b in func.buffers if isinstance(b, SparseBuffer)}
        self.aux.buffers = {
            handle: declared[handle] for handle in self.aux.buffers if handle in declared
        }
        self.loops: list[For] = []
        self.iters: list[BlockIter] = []
        self.places: dict[Axis, Pos] = {}

    def build(self, span: Span | None) -> Stmt:
        """Return the nest."""
        here: list[Expr | None] = []
        inside = follows(self.func, self.site.above)
        for k, fixed in enumerate(self._fixed()):
            extent = self._extent(k, span)
            if fixed is not None and not (
                inside(BinOp("<=", ZERO, fixed)) and inside(BinOp("<", fixed, extent))
            ):
                fixed = None
            if fixed is None:
                loop = self.names.var(f"ax{k}")
                own = self.names.var(f"v{loop.name}")
                self.loops.append(For(loop, ZERO, extent, seq()))
                outside = {it.var: it.value for it in self.iters}
                self.iters.append(BlockIter(own, substitute(extent, outside), loop))
                fixed = own
            here.append(fixed)
            if isinstance(self.source, SparseBuffer):
                axis = self.source.axes[k]
                above = None if axis.parent is None else self.places[axis.parent]
                self.places[axis] = Pos(axis, above, relative=fixed)
        move = Store(self.local, tuple(here), Load(self.source, tuple(here)))
        name = self.names.unique(f"{self.site.block.name}_load")
        outside = {own.var: own.value for own in self.iters}
        body: Stmt = annotate_regions(Block(name, tuple(self.iters), (), (), None, move))
        for around in reversed(self.loops):
            body = around.replace(end=substitute(around.end, outside), body=body)
        return body

    def _fixed(self) -> list[Expr | None]:
        """The indices that are the same in every access and throughout the nest; None: all."""
        inside = self.site.bound | {own.var for own in self.site.block.iters}
        inside |= bound_in(self.site.block)
        loads = [n for n in parts_of(self.site.block) if isinstance(n, Load)]
        accesses = [n.indices for n in loads if n.buffer is self.source]
        found: list[Expr | None] = []
        for indices in zip(*accesses, strict=True):
            first = indices[0]
            steady = isinstance(first, Var | Const) and first not in inside
            same = all(expr_equal(first, index) for index in indices)
            relative = all(None not in access for access in accesses)
            found.append(first if steady and same and relative else None)
        return found

    def _extent(self, k: int, span: Span | None) -> Expr:
        if isinstance(self.source, Buffer):
            return cast(self.source.shape[k], int64)
        axis = self.source.axes[k]
        above = None if axis.parent is None else self.places[axis.parent]
        if axis.is_variable and axis.indptr not in self.aux.buffers:
            raise refusal(
                self.step, f"{self.func.name} has no buffer of {axis.name}'s fibers", span
            )
        return self.aux.size(axis, above)


@dataclass(frozen=True, slots=True)
class ReverseCacheRead(Step):
    """``for i, j: s(B[J[i, j]])  ->  for i, j: B_local[j] = B[J[i, j]]; for i, j: s(B_local[j])``.

    As cache_read, but the copy is indexed by the iters of *block* that pick the element, in the
    order of the block or of *dim_order* (numbers of iters), and is made in copies of their loops.
    Legal where the block always reads the buffer, at one place. Source: SparseTIR's
    reverse_cache_read.
    """

    name: ClassVar[str] = "reverse_cache_read"
    makes: ClassVar[Makes] = "blocks"
    block: str
    read_buffer_index: int
    storage_scope: str = "local"
    dim_order: tuple[int, ...] = ()

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the copy, in a nest of its own."""
        site, buffer, span = _what_is_read(self, func, span)
        place = Place(self, func, site, buffer, span)
        if self.dim_order:
            place.reordered(self.dim_order)
        names = Names(func)
        local = place.local(names, self.storage_scope)
        load = place.copy(names, "_load", local, lambda there, here: stored(here, there))
        block = _Swap(buffer, local, place.index).inside(site.block)
        root = _replaced_in(site, annotate_regions(block))
        made = replaced(func, site.root, Alloc(local, seq(load, root)))
        return kept_apart(self, func, made, span)


@dataclass(frozen=True, slots=True)
class ReverseCacheWrite(Step):
    """``for i, j: W[I[i]] += x  ->  for i, j: t[i] += x, t from 0; for i: W[I[i]] += t[i]``.

    What *block* writes of its buffer number *write_buffer_index* goes to a local copy, indexed by
    the iters that pick the element, and then in copies of their loops to its place: it is added
    (or whatever the block does) where the block adds to what is there, and set where the block has
    an init. A permission ``atomic`` goes along. Legal where nothing else in the nest touches the
    buffer. Source: SparseTIR's reverse_cache_write.
    """

    name: ClassVar[str] = "reverse_cache_write"
    makes: ClassVar[Makes] = "blocks"
    block: str
    write_buffer_index: int
    storage_scope: str = "local"
    dim_order: tuple[int, ...] = ()

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the copy, and a nest that writes it back."""
        place = written(self, func, self.block, self.write_buffer_index, span)
        if self.dim_order:
            place.reordered(self.dim_order)
        return WriteBack(place, self.storage_scope, accumulates=True).build()


def written(step: Step, func: Func, block: str, index: int, span: Span | None) -> Place:
    """Return the element of buffer number *index* that *block* writes, nobody else in its nest."""
    site = site_of(func, block, step, span)
    span = span or site.block.span
    buffer = nth_buffer(step, site.block, index, span, writes=True)
    own = {node for node in parts_of(site.block) if getattr(node, "buffer", None) is buffer}
    for node in walk(site.root):
        touches = isinstance(node, Load | Search | Store) and node not in own
        if touches and memory_of(node.buffer) is memory_of(buffer):  # type: ignore[attr-defined]
            raise refusal(step, f"{buffer.name} is touched elsewhere in the nest", span)
    return Place(step, func, site, buffer, span)


def stored(target: Load, value: Expr) -> Store:
    """Return the store of *value* where *target* reads."""
    return Store(target.buffer, target.indices, cast(value, target.buffer.dtype))


class WriteBack:
    """A block whose updates go to a local copy, between the nests that fill it and write it back.

    *accumulates*: an update of what is there starts from nothing and is combined at the end.
    """

    def __init__(self, place: Place, scope: str, *, accumulates: bool) -> None:
        self.place, self.scope = place, scope
        self.block = block = place.site.block
        self.dropped = {loop.var for loop in place.dropped}
        own = [i for i in block.iters if i.kind == "R"]
        self.drivers = {v for i in own for v in variables(i.value)}
        self.reduction = self._combined() if accumulates else None
        self.fills = self.reduction is None and self._may_skip()
        self._check()

    def _combined(self) -> Reduction | None:
        """How the copies are combined with what is there; None: they replace it."""
        kept = {loop.var for loop in self.place.kept}
        if self.block.init is not None or self.place.site.goes_on:
            return None
        if not self.dropped <= self.drivers or self.drivers & kept:
            return None
        found = as_reduction(self.block.body)
        return None if found is None or found.is_tuple else found

    def _may_skip(self) -> bool:
        """Whether the block may leave the element as it is, or reads it first."""
        block, target = self.block, self.place.buffer
        if block.init is not None:
            return not self.dropped <= self.drivers
        sure = any(isinstance(n, Store) and n.buffer is target for n in unconditional(block.body))
        reads = any(isinstance(n, Load) and n.buffer is target for n in walk(block.body))
        return reads or not sure or bool(self.dropped)

    def _check(self) -> None:
        """Raise where another order of writes to one element would show."""
        place = self.place
        if self.block.init is not None and place.site.goes_on:
            raise place.error("a reduction goes on outside the nest, and starts there")
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
            fill = place.copy(names, "_load", local, lambda there, here: stored(here, there))
        back = place.copy(names, "_store", local, self._back)
        root = _replaced_in(place.site, annotate_regions(update))
        back = _Annotated(tuple(item for item in block.attrs if item[0] == "atomic")).rewrite(back)
        made = replaced(func, place.site.root, Alloc(local, seq(fill, root, back)))
        return kept_apart(place.step, func, made, place.span)

    def _back(self, there: Load, here: Load) -> Store:
        if self.reduction is None:
            return stored(there, here)
        return stored(there, combine(self.reduction.combiner, there, here))


class _Annotated(Rewriter):
    def __init__(self, attrs: Attrs) -> None:
        self.attrs = attrs

    def visit_Block(self, block: Block) -> Node:
        return block.replace(attrs=(*block.attrs, *self.attrs)) if self.attrs else block
