"""Before the first call: which buffers a program reads, writes, and fills from nothing."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Axis, Fuse, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.position import Block, Cursor, Region
from spcomp.ir.stmt import For, If, Prefetch, Seq, Stmt, Store
from spcomp.ir.visitor import Walker, below, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spcomp.ir.node import Node

Role: TypeAlias = Literal["in", "out", "inout"]
RESULTS = "results"  # an attribute of functions: handles that are results although they are read


@dataclass(slots=True)
class Access:
    """How a program uses one handle: its *role*; *full*: whether it writes every element.

    *bare*: a step of a reduction that comes before anything that writes a first value.
    """

    role: Role
    full: bool = False
    bare: Store | None = None


class _Accesses(Walker):
    """Finds, in program order, whether the first access to each handle is a read or a write."""

    COVERS = (Load, Search, Cursor, Region, Prefetch, Store, SpIter, If, For, Block)

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.first_read: set[str] = set()
        self.written: dict[str, None] = {}
        self.filled: set[AnyBuffer] = set()  # the buffers that something is stored in so far
        self.bare: dict[AnyBuffer, Store] = {}  # by the buffers that lack a first value
        self.scope: list[Var] = []
        self.block_scope: list[Var] = []

    def visit_Load(self, load: Load) -> None:
        self._read(load.buffer)
        self.visit_Node(load)

    def visit_Search(self, search: Search) -> None:
        self._read(search.buffer)
        self.visit_Node(search)

    def visit_Cursor(self, cursor: Cursor) -> None:
        if cursor.indices is not None:
            self._read(cursor.indices)
        self.visit_Node(cursor)

    def visit_Region(self, region: Region) -> None:
        """A region is a claim about accesses, not an access."""

    def visit_Prefetch(self, prefetch: Prefetch) -> None:
        """A prefetch changes nothing."""

    def visit_Store(self, store: Store) -> None:
        """An update of the element it writes, in a reduction, does not read the handle first."""
        reduces = self._reduces(store)
        for index in store.indices:
            if index is not None:
                self.visit(index)
        if store.mask is not None:
            self.visit(store.mask)
        if reduces and store.buffer not in self.filled and as_reduction(store) is not None:
            self.bare.setdefault(store.buffer, store)
        self.filled.add(store.buffer)
        self._visit_value(store.value, store if reduces else None)
        if store.buffer.data is not None:
            self.written[store.buffer.data.name] = None

    def visit_SpIter(self, stmt: SpIter) -> None:
        with self._inside(list(stmt.vars)):
            self.visit_Node(stmt)

    def visit_If(self, stmt: If) -> None:
        """A branch that stores a first value is there for the other one, which updates it."""
        stores = [n for n in walk(stmt) if isinstance(n, Store) and as_reduction(n) is None]
        self.filled.update(s.buffer for s in stores)
        self.visit_Node(stmt)

    def visit_For(self, loop: For) -> None:
        self.visit(loop.begin)
        self.visit(loop.end)
        with self._inside([loop.var]):
            self.visit(loop.body)

    def visit_Block(self, block: Block) -> None:
        """The iters of a block stand for the loops around it."""
        outer_scope, outer_block = self.scope, self.block_scope
        self.block_scope = [*outer_block, *(it.var for it in block.iters)]
        self.scope = list(self.block_scope)
        for part in (*block.iters, block.where, block.init, block.body):
            if part is not None:
                self.visit(part)
        self.scope, self.block_scope = outer_scope, outer_block

    @contextmanager
    def _inside(self, names: list[Var]) -> Iterator[None]:
        outer = self.scope
        self.scope = outer + names
        yield
        self.scope = outer

    def _read(self, buffer: AnyBuffer) -> None:
        if buffer.data is not None:
            self.read.add(buffer.data.name)
            if buffer.data.name not in self.written:
                self.first_read.add(buffer.data.name)

    def _reduces(self, store: Store) -> bool:
        """Whether several iterations write one element, so that a first value must exist."""
        used = {id(n) for index in store.indices if index for n in walk(index)}
        return any(id(var) not in used for var in self.scope)

    def _visit_value(self, value: Expr, store: Store | None) -> None:
        if store is None or not any(_updates(n, store) for n in walk(value)):
            self.visit(value)
            return
        for child in below(value) if not _updates(value, store) else ():
            if isinstance(child, Expr):
                self._visit_value(child, store)


def _updates(value: Node, store: Store) -> bool:
    return (
        isinstance(value, Load)
        and value.buffer is store.buffer
        and len(value.indices) == len(store.indices)
        and all(_same(a, b) for a, b in zip(value.indices, store.indices, strict=True))
    )


def _same(a: Node | None, b: Node | None) -> bool:
    """Whether two index expressions are equal; a variable equals itself only."""
    if a is b or a is None or b is None:
        return a is b
    if type(a) is not type(b) or isinstance(a, Var):
        return False
    data = [f for f in a.FIELDS if f not in a.CHILDREN and f != "span"]
    ours, others = below(a), below(b)
    return (
        all(getattr(a, f) == getattr(b, f) for f in data)
        and len(ours) == len(others)
        and all(_same(x, y) for x, y in zip(ours, others, strict=True))
    )


def accesses(func: Func) -> dict[str, Access]:
    """Return what *func* does to each handle that holds values, by the handle's name.

    ``out``: written before it is read (reading the element that a reduction updates does not
    count); ``inout``: read first, then written; ``in``: only read. A function with the attribute
    ``results`` says itself of which handles it only takes what their buffers begin with.
    """
    walker = _Accesses()
    walker.visit(func.body)
    full = _fully_written(func) - walker.read
    bare = {buffer.data.name: store for buffer, store in walker.bare.items() if buffer.data}
    names = [b.data.name for b in func.buffers if b.data is not None]
    walker.first_read.difference_update(func.attr(RESULTS, ()))
    return {n: Access(_role(n, walker), full=n in full, bare=bare.get(n)) for n in names}


def with_results(func: Func, handles: Iterable[str]) -> Func:
    """Return *func*, a lower stage of a program whose results are *handles*, with the same results.

    A loop that reads what its own stores begin with would else read an argument.
    """
    found = accesses(func)
    lost = tuple(h for h in handles if h in found and found[h].role == "inout")
    return func.with_attr(RESULTS, lost) if lost else func


def unset(func: Func) -> Iterator[tuple[AnyBuffer, Store]]:
    """Yield the buffers that *func* allocates and reduces into before it stores a first value."""
    walker = _Accesses()
    walker.visit(func.body)
    for buffer, store in walker.bare.items():
        if buffer.data is None and buffer.scope != WORKSPACE:
            yield buffer, store


def _role(name: str, walker: _Accesses) -> Role:
    if name not in walker.written:
        return "in"
    return "inout" if name in walker.first_read else "out"


def _fully_written(func: Func) -> set[str]:
    """The handles for which some top-level iteration is sure to write every element."""
    top = func.body.body if isinstance(func.body, Seq) else (func.body,)
    filled: set[str] = set()
    for stmt in top:
        if not isinstance(stmt, SpIter):
            continue
        stores = [(s, False) for s in _plain_stores(stmt.init)]
        if "R" not in stmt.kinds:
            stores += [(s, True) for s in _plain_stores(stmt.body)]
        filled |= {
            s.buffer.data.name
            for s, in_body in stores
            if s.buffer.data is not None and _covers(s, stmt, in_body=in_body)
        }
    return filled


def _plain_stores(stmt: Stmt | None) -> list[Store]:
    parts = stmt.body if isinstance(stmt, Seq) else (stmt,)
    return [s for s in parts if isinstance(s, Store) and s.mask is None]


def _covers(store: Store, stmt: SpIter, *, in_body: bool) -> bool:
    """Whether *store* writes every element: its indices are distinct spatial variables.

    An init runs over full lengths, so equal lengths are enough. A body runs over stored positions
    only, so it must run over the same axis, or over all of a dense one.
    """
    buffer = store.buffer
    if not isinstance(buffer, SparseBuffer) or buffer.extra_storage:
        return False
    runs = _spatial_axes(stmt)
    used = [runs.get(index) if isinstance(index, Var) else None for index in store.indices]
    if len(set(store.indices)) != len(used):
        return False
    for axis, run in zip(buffer.axes, used, strict=True):
        if run is None:
            return False
        dense = axis.kind == run.kind == "dense_fixed"
        if run is not axis and not ((dense or not in_body) and _same(run.length, axis.length)):
            return False
    return True


def _spatial_axes(stmt: SpIter) -> dict[Expr | None, Axis]:
    """The axis that each spatial variable of *stmt* runs over, where it is just one axis."""
    axes: list[Axis | None] = []
    for domain in stmt.domains:
        if isinstance(domain, Fuse):
            axes += domain.axes
        else:
            axes.append(domain if isinstance(domain, Axis) else None)
    return {
        var: axis
        for var, axis, kind in zip(stmt.vars, axes, stmt.kinds, strict=True)
        if axis is not None and kind == "S"
    }
