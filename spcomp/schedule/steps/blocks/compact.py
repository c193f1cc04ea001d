"""In position space: the step compact, which gives each iteration of a loop its own buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, parent_at
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Region
from spcomp.ir.rewrite import Redirect, Replace, substitute
from spcomp.ir.stmt import Alloc, For, Let, Prefetch, Stmt, Store, While
from spcomp.ir.visitor import below, walk
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.nests.values import binding_values
from spcomp.schedule.steps.base import Step, find_named


@dataclass(frozen=True, slots=True)
class Compact(Step):
    """``X = alloc(n, m); for i in n: s(X[i, j])  ->  for i in n: X = alloc(m); s(X[j])``.

    *buffer*, which the program allocates, is allocated inside *loop* instead (if it is not yet),
    without the indices that are constant in an iteration: it stays in cache, and iterations share
    no memory. Legal where all accesses are inside the loop, and each has *loop*, and every loop
    between it and the allocation, as an index. Source: the compaction of buffers in TVM.
    """

    name: ClassVar[str] = "compact"
    buffer: str
    loop: str

    def plan(self, func: Func) -> _Placement:
        """Return where the buffer is to be allocated, and with which extents."""
        loop = find_loop(func, self.loop, self)
        allocs = ((n.buffer.name, n) for n in walk(func.body) if isinstance(n, Alloc))
        none = f"{self}: {self.buffer} is not allocated here"
        alloc = find_named(allocs, self.buffer, none, "local buffers", func.span)
        path, outside = _loops_to(alloc.body, loop), _loops_to(func.body, alloc)
        if not path and loop not in outside:
            raise self.error("the loop is not inside its allocation, nor around it", loop)
        home = loop.body if path else alloc.body
        if _count(alloc.body, alloc.buffer) != _count(home, alloc.buffer):
            raise self.error("it is used outside the loop", loop)
        places = self._places(func, home, alloc.buffer, (*outside, *path))
        for around in path:
            if isinstance(around, While):
                raise self.error("a loop without an index is around it", loop)
            if not any(var is around.var for var in places.values()):
                raise self.error(f"{around.var.name!r} is no index of all its accesses", loop)
        if not places:
            raise self.error("no index of all its accesses is a loop around", loop)
        extents = self._extents(func, alloc.buffer, places)
        return _Placement(alloc, loop if path else None, frozenset(places), extents)

    def rewrite(self, func: Func, plan: _Placement) -> Func:
        """Return *func* with the buffer allocated inside the loop."""
        alloc, loop = plan.alloc, plan.loop
        body = self._allocate_inside(func, alloc.body if loop is None else loop.body, plan)
        if loop is not None:
            body = Replace(loop, loop.replace(body=body)).rewrite(alloc.body)
        return replace_stmt(func, alloc, body)

    def _allocate_inside(self, func: Func, home: Stmt, plan: _Placement) -> Stmt:
        """Return *home* with the buffer allocated around it, without the indices *places*."""
        names, buffer, extents, places = Names(func), plan.alloc.buffer, plan.extents, plan.places
        # computed sizes get names, as later steps look into statements, but not into shapes
        sizes = {k: names.var(f"{buffer.name}_size") for k, e in enumerate(extents) if _varies(e)}
        shape = tuple(sizes.get(k, extent) for k, extent in enumerate(extents))
        scope = "local" if buffer.scope == "global" else buffer.scope
        local = Buffer(names.unique(f"{buffer.name}_own"), None, shape, buffer.dtype, scope)
        remaining = [k for k in range(_rank(buffer)) if k not in places]
        stmt: Stmt = Alloc(local, _UseLocal(buffer, local, remaining).rewrite(home))
        for k, size in sizes.items():
            stmt = Let(size, extents[k], stmt)
        return stmt

    def _places(
        self, func: Func, home: Stmt, buffer: AnyBuffer, around: tuple[For | While, ...]
    ) -> dict[int, Expr]:
        """Return the loop of each index that is the same loop around in all accesses."""
        values = binding_values(func.body)
        loops = {loop.var for loop in around if isinstance(loop, For)}
        places: dict[int, Expr] | None = None
        for node in walk(home):
            if not _uses(node, buffer):
                continue
            indices: tuple[Expr | None, ...] = getattr(node, "indices", ())  # none of a search
            at = {k: substitute(i, values) for k, i in enumerate(indices) if i is not None}
            loop_indices: dict[int, Expr] = {k: var for k, var in at.items() if var in loops}
            places = (
                loop_indices
                if places is None
                else {k: v for k, v in places.items() if loop_indices.get(k) is v}
            )
        return places or {}

    def _extents(
        self,
        func: Func,
        buffer: AnyBuffer,
        places: dict[int, Expr],
    ) -> tuple[Expr, ...]:
        """Return the extents of *buffer* in an iteration: along the axes that remain."""
        if isinstance(buffer, Buffer):
            shape = tuple(e for k, e in enumerate(buffer.shape) if k not in places)
            plain = buffer.strides is None
        else:
            at = {buffer.axes[k]: var for k, var in places.items()}
            remaining = [axis for axis in buffer.axes if axis not in at]
            arrays = Auxiliary.of(func)
            plain = all(at.keys() >= {*axis.ancestors()} for axis in remaining)
            shape = tuple(_extent(arrays, axis, at) for axis in remaining) if plain else ()
        if not plain:
            why = f"how long rows of {buffer.name} are differs within an iteration"
            raise self.error(why, func)
        return shape or (const(1),)


@dataclass(frozen=True, slots=True)
class _Placement:
    """An allocation that goes into *loop* (None: it is there already), without indices *places*.

    *extents*: the shape of the buffer that an iteration needs.
    """

    alloc: Alloc
    loop: For | None
    places: frozenset[int]
    extents: tuple[Expr, ...]


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
    """Return the loops from *stmt* inwards to *end*, both included; [] if it is not there."""
    stack: list[tuple[Node, list[For | While]]] = [(stmt, [])]
    while stack:
        node, around = stack.pop()
        around = [*around, node] if isinstance(node, (For, While)) else around
        if node is end:
            return around
        stack += [(part, around) for part in below(node) if isinstance(part, Stmt)]
    return []


def _extent(arrays: Auxiliary, axis: Axis, at: dict[Axis, Expr]) -> Expr:
    """Return how many positions the fiber of *axis* has; *at*: the positions of its ancestors."""
    return arrays.size(axis, parent_at(axis, tuple(at[outer] for outer in axis.path()[:-1])))


class _UseLocal(Redirect):
    """Replaces *old* by *local*, which has only the indices *remaining*."""

    def __init__(self, old: AnyBuffer, local: Buffer, remaining: list[int]) -> None:
        super().__init__(old, local, lambda xs: tuple(xs[k] for k in remaining) or (ZERO,))
        self.remaining = remaining

    def visit_Region(self, region: Region) -> Node:
        """Replace the buffer in a region, if its indices are relative."""
        new = self.visit_Node(region)
        assert isinstance(new, Region)
        if region.buffer is not self.buffer:
            return new
        if any(begin is None for begin in new.begins):
            return new
        extents = self.place(new.extents) if self.remaining else (const(1),)
        return Region(self.target, self.place(new.begins), extents)
