"""The step that gives each iteration of a loop a buffer of its own, as large as it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Region
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Let, Prefetch, Stmt, Store, While
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import Replace, find_loop, replaced
from spcomp.schedule.steps.base import Step, the_one
from spcomp.schedule.steps.sharing.split_nnz import named


@dataclass(frozen=True, slots=True)
class Compact(Step):
    """``X = alloc(n, m); for i in n: s(X[i, j])  ->  for i in n: X = alloc(m); s(X[j])``.

    *buffer*, which the program allocates, is allocated inside *loop* instead (if it is not yet),
    without the indices that are the same all over an iteration: it stays in cache, and iterations
    share no memory. Legal where all accesses are inside the loop, and *loop*, as every loop between
    the allocation and it, is an index of each. Source: the compaction of buffers in TVM.
    """

    name: ClassVar[str] = "compact"
    buffer: str
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the buffer allocated inside the loop."""
        loop = find_loop(func, self.loop, self, span)
        allocs = ((n.buffer.name, n) for n in walk(func.body) if isinstance(n, Alloc))
        none = f"{self}: {self.buffer} is not allocated here"
        alloc = the_one(allocs, self.buffer, none, "local buffers", span or func.span)
        path, outside = _loops_to(alloc.body, loop), _loops_to(func.body, alloc)
        if not path and loop not in outside:
            raise self._error("the loop is not inside its allocation, nor around it", loop, span)
        home = loop.body if path else alloc.body
        if _count(alloc.body, alloc.buffer) != _count(home, alloc.buffer):
            raise self._error("it is used outside the loop", loop, span)
        places = self._places(func, home, alloc.buffer, (*outside, *path))
        for own in path:
            if isinstance(own, While):
                raise self._error("a loop without an index is around it", loop, span)
            if not any(var is own.var for var in places.values()):
                raise self._error(f"{own.var.name!r} is no index of all its accesses", loop, span)
        if not places:
            raise self._error("no index of all its accesses is a loop around", loop, span)
        body = self._inside(func, home, alloc.buffer, places, span)
        if path:
            body = Replace(loop, loop.replace(body=body)).rewrite(alloc.body)
        return replaced(func, alloc, body)

    def _inside(
        self, func: Func, home: Stmt, buffer: AnyBuffer, places: dict[int, Expr], span: Span | None
    ) -> Stmt:
        """Return *home* with a buffer of its own, without the indices *places*."""
        names = Names(func)
        extents = self._extents(func, buffer, places, span)
        # what a size is computed from has a name: later steps see into statements, not into shapes
        sizes = {k: names.var(f"{buffer.name}_size") for k, e in enumerate(extents) if _varies(e)}
        shape = tuple(sizes.get(k, extent) for k, extent in enumerate(extents))
        local = Buffer(names.unique(f"{buffer.name}_own"), None, shape, buffer.dtype, "local")
        kept = [k for k in range(_rank(buffer)) if k not in places]
        made: Stmt = Alloc(local, _UseLocal(buffer, local, kept).rewrite(home))
        for k, size in sizes.items():
            made = Let(size, extents[k], made)
        return made

    def _places(
        self, func: Func, home: Stmt, buffer: AnyBuffer, around: tuple[For | While, ...]
    ) -> dict[int, Expr]:
        """Return which indices of all accesses are loops around, and which loop each."""
        values = named(func.body)
        loops = {loop.var for loop in around if isinstance(loop, For)}
        found: dict[int, Expr] | None = None
        for node in walk(home):
            if not _uses(node, buffer):
                continue
            indices: tuple[Expr | None, ...] = getattr(node, "indices", ())  # none of a search
            at = {k: substitute(i, values) for k, i in enumerate(indices) if i is not None}
            here: dict[int, Expr] = {k: var for k, var in at.items() if var in loops}
            found = here if found is None else {k: v for k, v in found.items() if here.get(k) is v}
        return found or {}

    def _extents(
        self,
        func: Func,
        buffer: AnyBuffer,
        places: dict[int, Expr],
        span: Span | None,
    ) -> tuple[Expr, ...]:
        """Return the extents of what an iteration needs of *buffer*: along the axes left."""
        if isinstance(buffer, Buffer):
            shape = tuple(e for k, e in enumerate(buffer.shape) if k not in places)
            plain = buffer.strides is None
        else:
            at = {buffer.axes[k]: var for k, var in places.items()}
            left = [axis for axis in buffer.axes if axis not in at]
            plain = all(at.keys() >= {*axis.path()[:-1]} for axis in left)
            shape = tuple(_extent(func, axis, at) for axis in left) if plain else ()
        if not plain:
            why = f"how long rows of {buffer.name} are differs within an iteration"
            raise ScheduleError(f"{self}: {why}", span or func.span)
        return shape or (const(1),)


def _uses(node: Node, buffer: AnyBuffer) -> bool:
    """Whether *node* accesses *buffer*."""
    return isinstance(node, (Load, Store, Search, Prefetch)) and node.buffer is buffer


def _count(stmt: Stmt, buffer: AnyBuffer) -> int:
    return sum(_uses(node, buffer) for node in walk(stmt))


def _varies(extent: Expr) -> bool:
    return any(isinstance(node, (Load, Var)) for node in walk(extent))


def _rank(buffer: AnyBuffer) -> int:
    return len(buffer.axes) if isinstance(buffer, SparseBuffer) else len(buffer.shape)


def _loops_to(stmt: Stmt, end: Stmt) -> list[For | While]:
    """Return the loops from *stmt* inwards to *end*, itself included; none if it is not there."""
    stack: list[tuple[Node, list[For | While]]] = [(stmt, [])]
    while stack:
        node, around = stack.pop()
        around = [*around, node] if isinstance(node, (For, While)) else around
        if node is end:
            return around
        for name in node.CHILDREN:
            child = getattr(node, name)
            parts = child if isinstance(child, tuple) else (child,)
            stack += [(part, around) for part in parts if isinstance(part, Stmt)]
    return []


def _extent(func: Func, axis: Axis, at: dict[Axis, Expr]) -> Expr:
    """Return how many positions the fiber of *axis* has under its ancestors, which are *at*."""
    if axis.parent is None:
        return cast(axis.length, int64)
    if axis.nnz_cols is not None:
        return cast(axis.nnz_cols, int64)
    indptr = next(b for b in func.buffers if b.data is axis.indptr)
    *outer, row = (at[above] for above in axis.path()[:-1])
    begin, end = (Load(indptr, (*outer, plus(row, k))) for k in (0, 1))
    return cast(binary("-", end, begin), int64)


class _UseLocal(Rewriter):
    """Accesses *local*, with the indices *kept*, in the place of *old*."""

    def __init__(self, old: AnyBuffer, local: Buffer, kept: list[int]) -> None:
        self.old, self.local, self.kept = old, local, kept

    def _indices(self, indices: tuple[Expr | None, ...]) -> tuple[Expr | None, ...]:
        return tuple(indices[k] for k in self.kept) or (ZERO,)

    def visit_Load(self, load: Load) -> Node:
        """Read the local buffer."""
        new = self.visit_Node(load)
        if load.buffer is not self.old:
            return new
        return new.replace(buffer=self.local, indices=self._indices(new.indices))  # type: ignore[attr-defined]

    def visit_Store(self, store: Store) -> Node:
        """Write the local buffer."""
        new = self.visit_Node(store)
        if store.buffer is not self.old:
            return new
        return new.replace(buffer=self.local, indices=self._indices(new.indices))  # type: ignore[attr-defined]

    def visit_Prefetch(self, hint: Prefetch) -> Node:
        """Ask for the local buffer."""
        new = self.visit_Node(hint)
        if hint.buffer is not self.old:
            return new
        return new.replace(buffer=self.local, indices=self._indices(new.indices))  # type: ignore[attr-defined]

    def visit_Region(self, region: Region) -> Node:
        """Say so."""
        new = self.visit_Node(region)
        assert isinstance(new, Region)
        if region.buffer is not self.old:
            return new
        if any(begin is None for begin in new.begins):
            return new
        extents = self._indices(new.extents) if self.kept else (const(1),)
        return Region(self.local, self._indices(new.begins), extents)
