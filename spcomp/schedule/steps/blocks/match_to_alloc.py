"""The step of stage II that makes an array of the caller one of the program's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import AnyBuffer, Buffer, SparseBuffer
from spcomp.ir.expr import Expr, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block, BlockIter, Cursor, Region
from spcomp.ir.rewrite import relink, substitute
from spcomp.ir.stmt import Alloc, For, Seq, Stmt, Store, seq
from spcomp.ir.visitor import Walker
from spcomp.schedule.nests.nests import find_block, nest
from spcomp.schedule.steps.base import Makes, Step


@dataclass(frozen=True, slots=True)
class MatchToAlloc(Step):
    """``C = match_buffer(c): s  ->  C = alloc_buffer(): s``: the parameter c is gone.

    *buffer_index*: the place of a region in what *block* declares to write. Legal where the
    program writes to the array before it reads it, it does read it (else it is a result), and
    nothing else lies in its memory. It begins
    with its fill value, as one that the caller of a Kernel leaves out, unless the first thing the
    program does with it is to write all of it. Source: SparseTIR's match_to_alloc.
    """

    name: ClassVar[str] = "match_to_alloc"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buffer_index: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* without the parameter."""
        block = find_block(func, self.block, self, span)
        if not 0 <= self.buffer_index < len(block.writes):
            raise ScheduleError(
                f"{self}: the block declares {len(block.writes)} writes, counted from 0",
                span or block.span,
            )
        buffer = block.writes[self.buffer_index].buffer
        if (why := _needed_outside(func, buffer)) is not None:
            raise ScheduleError(f"{self}: {why}", span or block.span)
        local = buffer.replace(data=None)
        made = relink(func, buffers={buffer: local})
        fill = None if _begins_full(func, buffer) else _fill(func, local)
        return made.replace(
            params=tuple(param for param in func.params if param is not buffer.data),
            buffers=tuple(b for b in made.buffers if b is not local),
            body=Alloc(local, seq(fill, made.body)),
        )


def _needed_outside(func: Func, buffer: AnyBuffer) -> str | None:
    """Say why *buffer* cannot be the program's own, None if it can."""
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
    return None if first.reads else f"nothing but the caller reads {name}"


class _First(Walker):
    """Whether the program, in the order it is written, stores to *buffer* before it reads it.

    *reads*: it reads it at all, and not just to write it again.
    """

    def __init__(self, buffer: AnyBuffer) -> None:
        self.buffer = buffer
        self.writes: bool | None = None
        self.reads = False
        self.storing = False

    def _note(self, node: Load | Store | Search, *, writes: bool) -> None:
        if node.buffer is self.buffer and self.writes is None:
            self.writes = writes
        self.reads |= node.buffer is self.buffer and not writes and not self.storing

    def visit_Load(self, load: Load) -> None:
        self.visit_Node(load)
        self._note(load, writes=False)

    def visit_Search(self, search: Search) -> None:
        self.visit_Node(search)
        self._note(search, writes=False)

    def visit_Cursor(self, cursor: Cursor) -> None:
        self.visit_Node(cursor)
        if cursor.indices is self.buffer:
            self.reads = True
            self.writes = bool(self.writes)

    def visit_Store(self, store: Store) -> None:
        self.storing = store.buffer is self.buffer
        self.visit_Node(store)
        self.storing = False
        self._note(store, writes=True)

    def visit_Region(self, region: Region) -> None:
        """A region is no access."""

    def visit_Block(self, block: Block) -> None:
        """What a block starts from comes before what it does."""
        for part in (*block.iters, block.where, block.init, block.body):
            if part is not None:
                self.visit(part)


def _begins_full(func: Func, buffer: AnyBuffer) -> bool:
    """Whether the first statement that touches *buffer* is a loop nest that writes all of it."""
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
    """Whether *stmt* is loops, nested perfectly, over all elements, and a store to each."""
    values: dict[Var, Expr] = {}
    loops: list[For] = []
    while isinstance(stmt, (For, Block)):
        if isinstance(stmt, For):
            loops.append(stmt.replace(end=substitute(stmt.end, values)))
        elif stmt.where is not None or stmt.init is not None:
            return False
        else:
            values |= {own.var: substitute(own.value, values) for own in stmt.iters}
        stmt = stmt.body
    if not isinstance(stmt, Store) or stmt.buffer is not buffer:
        return False
    indices = [None if i is None else substitute(i, values) for i in stmt.indices]
    by_var = {loop.var: loop for loop in loops if from_zero(loop)}
    driving = [by_var.get(i) if isinstance(i, Var) else None for i in indices]
    known = [loop for loop in driving if loop is not None]
    if len({*known}) != len(buffer_rank(buffer)) or len(known) != len(loops):
        return False
    sizes = _sizes(func, buffer, [loop.var for loop in known])
    return all(expr_equal(x.end, size) for x, size in zip(known, sizes, strict=True))


def buffer_rank(buffer: AnyBuffer) -> tuple[object, ...]:
    """Return what *buffer* has an index for: its axes, or the extents of its shape."""
    return buffer.axes if isinstance(buffer, SparseBuffer) else buffer.shape


def _sizes(func: Func, buffer: AnyBuffer, at: list[Var]) -> list[Expr]:
    """Return how many elements there are along each dimension, the outer ones being *at*."""
    if isinstance(buffer, Buffer):
        return [cast(extent, int64) for extent in buffer.shape]
    arrays = Auxiliary(func)
    declared = {b.data: b for b in func.buffers if isinstance(b, SparseBuffer) and b.data}
    arrays.buffers |= {handle: declared[handle] for handle in arrays.buffers if handle in declared}
    places: dict[object, Pos] = {}
    sizes: list[Expr] = []
    for axis, var in zip(buffer.axes, at, strict=True):
        parent = None if axis.parent is None else places[axis.parent]
        sizes.append(arrays.size(axis, parent))
        places[axis] = Pos(axis, parent, var)
    return sizes


def _fill(func: Func, buffer: AnyBuffer) -> Stmt:
    """Return loops that give every element of *buffer* its fill value."""
    names = Names(func)
    at = [names.var(f"{buffer.name.lower()}_{k}") for k in range(len(buffer_rank(buffer)))]
    sizes = _sizes(func, buffer, at)
    loops = [For(var, ZERO, size, Seq(())) for var, size in zip(at, sizes, strict=True)]
    iters = tuple(
        BlockIter(names.var(f"v{var.name}"), size, var) for var, size in zip(at, sizes, strict=True)
    )
    value = const(getattr(buffer, "fill", 0), buffer.dtype)
    store = Store(buffer, tuple(own.var for own in iters), value)
    block = Block(names.unique(f"{buffer.name}_fill"), iters, (), (), None, store)
    made: Stmt = nest(loops, block)
    return made
