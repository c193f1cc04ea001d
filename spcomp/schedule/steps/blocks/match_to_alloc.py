"""In position space: the step match_to_alloc, which makes an argument a local buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.axis import AnyBuffer, Buffer, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter, Cursor, Region
from spcomp.ir.rewrite import relink, substitute
from spcomp.ir.stmt import Alloc, For, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import Walker, walk
from spcomp.schedule.nests.nests import find_block, nest
from spcomp.schedule.steps.base import Makes, Step


@dataclass(frozen=True, slots=True)
class MatchToAlloc(Step):
    """``C = match_buffer(c): s  ->  C = alloc_buffer(): s``: the parameter c is removed.

    *buffer_index*: the place of a region among those that *block* declares to write. Legal where
    the program writes the array before it reads it, computes something else from it (else it is a
    result), and no other buffer shares its memory. The buffer begins with its fill value, like an
    output that the caller of a Kernel leaves out, unless the program first writes all of it.
    Source: SparseTIR's match_to_alloc.
    """

    name: ClassVar[str] = "match_to_alloc"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buffer_index: int

    def plan(self, func: Func) -> AnyBuffer:
        """Return the buffer."""
        block = find_block(func, self.block, self)
        if not 0 <= self.buffer_index < len(block.writes):
            count = len(block.writes)
            raise self.error(f"the block declares {count} writes, counted from 0", block)
        buffer = block.writes[self.buffer_index].buffer
        if (why := _needed_outside(func, buffer)) is not None:
            raise self.error(why, block)
        return buffer

    def rewrite(self, func: Func, plan: AnyBuffer) -> Func:
        """Return *func* without the parameter."""
        buffer = plan
        local = buffer.replace(data=None)
        relinked = relink(func, buffers={buffer: local})
        fill = None if _begins_full(func, buffer) else _fill(func, local)
        return relinked.replace(
            params=tuple(param for param in func.params if param is not buffer.data),
            buffers=tuple(b for b in relinked.buffers if b is not local),
            body=Alloc(local, seq(fill, relinked.body)),
        )


def _needed_outside(func: Func, buffer: AnyBuffer) -> str | None:
    """Return why *buffer* cannot be local to the program; None if it can."""
    name, handle = buffer.name, buffer.data
    if handle is None:
        return f"{name} is allocated already"
    if any(b.data is handle and b is not buffer for b in func.buffers):
        return f"another buffer lies in the memory of {name}"
    if any(handle in (axis.indptr, axis.indices) for axis in func.axes):
        return f"{name} belongs to an axis"
    if any(domain.buffer is buffer for domain in func.domains):
        return f"the values of {name} are declared to lie in a range"
    first = _First(buffer)
    first.visit(func.body)
    if not first.writes:
        return f"{name} is read before it is written"
    return None if _is_read(func, buffer) else f"nothing but the caller reads {name}"


def _is_read(func: Func, buffer: AnyBuffer) -> bool:
    """Whether *func* reads *buffer*, other than to update it, also through local copies."""
    found = _Reads()
    found.visit(func.body)
    updates: set[Node | None] = {buffer}  # and local buffers that only these are computed from
    local = {node.buffer for node in walk(func.body) if isinstance(node, Alloc)} - updates
    while copies := {b for b in local if found.by.get(b, set()) <= updates | {b}}:
        updates |= copies
        local -= copies
    return not found.by.get(buffer, set()) <= updates


class _Reads(Walker):
    """Finds what is computed from each buffer: *by* buffer, those that are stored to.

    None among them: a range, a condition or a search reads it.
    """

    def __init__(self) -> None:
        self.by: dict[Node, set[Node | None]] = {}
        self.stored: AnyBuffer | None = None

    def visit_Load(self, load: Load) -> None:
        self.visit_Node(load)
        self.by.setdefault(load.buffer, set()).add(self.stored)

    def visit_Search(self, search: Search) -> None:
        self.visit_Node(search)
        self.by.setdefault(search.buffer, set()).add(None)

    def visit_Cursor(self, cursor: Cursor) -> None:
        self.visit_Node(cursor)
        if cursor.indices is not None:
            self.by.setdefault(cursor.indices, set()).add(None)

    def visit_Store(self, store: Store) -> None:
        self.stored = store.buffer
        self.visit_Node(store)
        self.stored = None

    def visit_Region(self, region: Region) -> None:
        """A region is no access."""


class _First(Walker):
    """Finds whether the first access to *buffer*, in program order, is a store: *writes*."""

    def __init__(self, buffer: AnyBuffer) -> None:
        self.buffer = buffer
        self.writes: bool | None = None

    def _note(self, node: Load | Store | Search, *, writes: bool) -> None:
        if node.buffer is self.buffer and self.writes is None:
            self.writes = writes

    def visit_Load(self, load: Load) -> None:
        self.visit_Node(load)
        self._note(load, writes=False)

    def visit_Search(self, search: Search) -> None:
        self.visit_Node(search)
        self._note(search, writes=False)

    def visit_Cursor(self, cursor: Cursor) -> None:
        self.visit_Node(cursor)
        if cursor.indices is self.buffer:
            self.writes = bool(self.writes)

    def visit_Store(self, store: Store) -> None:
        self.visit_Node(store)
        self._note(store, writes=True)

    def visit_Region(self, region: Region) -> None:
        """A region is no access."""

    def visit_Block(self, block: Block) -> None:
        """Visit the init before the body."""
        for part in (*block.iters, block.where, block.init, block.body):
            if part is not None:
                self.visit(part)


def _begins_full(func: Func, buffer: AnyBuffer) -> bool:
    """Whether the first statement to touch *buffer* is a loop nest that writes all of it."""
    body = func.body
    while isinstance(body, Alloc):
        body = body.body
    for stmt in body.body if isinstance(body, Seq) else (body,):
        first = _First(buffer)
        first.visit(stmt)
        if first.writes is not None:
            return _writes_all(func, stmt, buffer)
    return False


def _writes_all(func: Func, stmt: Stmt, buffer: AnyBuffer) -> bool:
    """Whether *stmt* is a perfect nest of loops over all elements with a store to each.

    The store may be the init of a reduction, further loops may run if they are not empty.
    """
    values: dict[Var, Expr] = {}
    loops: list[For] = []
    while isinstance(stmt, (For, Block)):
        if isinstance(stmt, For):
            loops.append(stmt.replace(end=substitute(stmt.end, values)))
        elif stmt.where is not None or (stmt.init and not _updates_only(stmt, buffer)):
            return False
        else:
            values |= {it.var: substitute(it.value, values) for it in stmt.iters}
        stmt = (isinstance(stmt, Block) and stmt.init) or stmt.body
    if not isinstance(stmt, Store) or stmt.buffer is not buffer:
        return False
    indices = [None if i is None else substitute(i, values) for i in stmt.indices]
    by_var = {loop.var: loop for loop in loops if from_zero(loop)}
    driving = [by_var.get(i) if isinstance(i, Var) else None for i in indices]
    driving_loops = [loop for loop in driving if loop is not None]
    used = [i for i in indices if i is not None]
    if not len({*driving_loops}) == len(driving_loops) == len(used):
        return False
    if not all(loop in driving_loops or _runs(loop) for loop in loops):
        return False
    sizes = _sizes(func, buffer, [None if loop is None else loop.var for loop in driving])
    ends = [loop.end for loop in driving_loops]
    return all(size and expr_equal(end, size) for end, size in zip(ends, sizes, strict=True))


def _updates_only(block: Block, buffer: AnyBuffer) -> bool:
    """Whether *block* begins an element of *buffer* and reads no other element of it."""
    if not isinstance(block.init, Store):
        return False
    loads = [n for n in walk(block.body) if isinstance(n, Load) and n.buffer is buffer]
    return all(expr_equal(load, Load(buffer, block.init.indices)) for load in loads)


def _runs(loop: For) -> bool:
    """Whether *loop* is known to run."""
    begin, end = loop.begin, loop.end
    return isinstance(begin, Const) and isinstance(end, Const) and begin.value < end.value


def buffer_rank(buffer: AnyBuffer) -> tuple[object, ...]:
    """Return the axes of *buffer*, or the extents of its shape: one for each index."""
    return buffer.axes if isinstance(buffer, SparseBuffer) else buffer.shape


def _sizes(func: Func, buffer: AnyBuffer, at: Sequence[Var | None]) -> list[Expr | None]:
    """Return the number of elements along each dimension; *at*: the positions in outer ones.

    A position below dimensions without one is that in all fibers; None: their number is unknown.
    """
    if isinstance(buffer, Buffer):
        return [cast(extent, int64) for extent in buffer.shape]
    arrays = Auxiliary.of(func)
    places: dict[object, Pos] = {}
    sizes: list[Expr | None] = []
    for axis, var in zip(buffer.axes, at, strict=True):
        if var is None:
            continue
        if axis.parent is not None and axis.parent not in places:
            sizes.append(None if axis.nnz is None else cast(axis.nnz, int64))
            places[axis] = Pos(axis, None, absolute=var)
            continue
        parent = None if axis.parent is None else places[axis.parent]
        sizes.append(arrays.size(axis, parent))
        places[axis] = Pos(axis, parent, var)
    return sizes


def _fill(func: Func, buffer: AnyBuffer) -> Stmt:
    """Return loops that give every element of *buffer* its fill value."""
    names = Names(func)
    at = [names.var(f"{buffer.name.lower()}_{k}") for k in range(len(buffer_rank(buffer)))]
    sizes = [size for size in _sizes(func, buffer, at) if size is not None]
    loops = [For(var, ZERO, size, Seq(())) for var, size in zip(at, sizes, strict=True)]
    iters = tuple(
        BlockIter(names.var(f"v{var.name}"), size, var) for var, size in zip(at, sizes, strict=True)
    )
    value = const(getattr(buffer, "fill", 0), buffer.dtype)
    store = Store(buffer, tuple(it.var for it in iters), value)
    block = Block(names.unique(f"{buffer.name}_fill"), iters, (), (), None, store)
    stmt: Stmt = nest(loops, block)
    return stmt
