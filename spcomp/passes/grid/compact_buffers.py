"""III to III: memory that threads allocate is as large as what they touch of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.fragments import is_fragment
from spcomp.ir.arith.bounds import Env, Interval, bounds_of
from spcomp.ir.arith.linear import ONE, Algebra, Linear, mentions
from spcomp.ir.arith.memory import are_constant, read_by
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Buffer
from spcomp.ir.expr import Const, Expr, Var, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Indices, Redirect, Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Let, Prefetch, Stmt, Store
from spcomp.ir.visitor import Walker
from spcomp.knobs import CUDA_GRID
from spcomp.passes.base import FuncPass, Stage

TILE = 128  # elements of the smallest matrix that a warp holds


@dataclass(frozen=True, slots=True)
class CompactBuffers(FuncPass):
    """``x = alloc(n); for k in 4: x[8 * row + k]  ->  x = alloc(4); for k in 4: x[k]``.

    What all places in a buffer have in common, from outside its allocation, only says which part of
    it is used. Where the rest has constant bounds, that part is all there is. Source: the
    compaction of buffers in TVM.
    """

    name: ClassVar[str] = "compact_buffers"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with the smallest buffers that are known to do."""
        body = _Compactor().rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


class _Compactor(Rewriter):
    def visit_Alloc(self, alloc: Alloc) -> Node:
        new = self.visit_Node(alloc)
        assert isinstance(new, Alloc)
        buffer = new.buffer
        if not isinstance(buffer, Buffer) or buffer.scope == WORKSPACE:
            return new
        part = _part_of(buffer, new.body)
        if part is None:
            return new
        base, low, size = part
        if is_fragment(buffer) and size % TILE:
            return new
        local = buffer.replace(shape=(const(size),))
        before = base.shift(low).scale(-1)

        def place(indices: Indices) -> Indices:
            (index,) = indices
            assert index is not None
            here = Algebra(Env(), trusted=True).of(cast(index, int64)) + before
            return (simplify(here.expr()),)

        return new.replace(buffer=local, body=Redirect(buffer, local, place).rewrite(new.body))


def _part_of(buffer: Buffer, body: Stmt) -> tuple[Linear, int, int] | None:
    """Return where the part that *body* uses begins, as a base and a distance, and its size.

    None: it is not known, or all of the buffer.
    """
    places = _Places(buffer)
    places.visit(body)
    if not places.complete or not places.indices:
        return None
    algebra = Algebra(Env(), trusted=True)
    inner = places.inner
    bounds: Interval | None = None
    bases: dict[object, Linear] = {}
    for index in places.indices:
        form = algebra.of(cast(substitute(index, places.values), int64))
        own, base = form.split(lambda key, term: key == ONE or mentions(term.atoms, inner))
        interval = bounds_of(simplify(own.expr()), Env(places.ranges))
        bounds = interval if bounds is None else bounds | interval
        bases[base.key] = base
    (base, *others) = bases.values()
    if others or bounds is None or not are_constant(tuple(base.atoms), body):
        return None
    if (
        bounds.low is None
        or bounds.high is None
        or bounds.high - bounds.low >= CUDA_GRID.compact_elements
    ):
        return None
    size, whole = bounds.high - bounds.low + 1, simplify(buffer.shape[0])
    if isinstance(whole, Const) and size >= whole.value:
        return None
    return base, bounds.low, size


class _Places(Walker):
    """The indices at which *buffer* is accessed, in terms of *values* of variables.

    *inner*: the variables bound inside; *ranges*: those of loops with constant ends; *complete*:
    whether all accesses are at single places.
    """

    def __init__(self, buffer: AnyBuffer) -> None:
        self.buffer = buffer
        self.indices: list[Expr] = []
        self.values: dict[Var, Expr] = {}
        self.ranges: dict[Var, Interval] = {}
        self.inner: set[Var] = set()
        self.complete = True

    def visit_For(self, loop: For) -> None:
        """Note the range of the variable."""
        self.inner.add(loop.var)
        begin, end = (
            bounds_of(substitute(x, self.values), Env(self.ranges)) for x in (loop.begin, loop.end)
        )
        if begin.low is not None and end.high is not None:
            self.ranges[loop.var] = Interval(begin.low, max(begin.low, end.high - 1))
        self.visit_Node(loop)

    def visit_Let(self, let: Let) -> None:
        """Note the value of the variable, if that is arithmetic."""
        self.inner.add(let.var)
        value = substitute(let.value, self.values)
        if not any(read_by(value)) and let.var.dtype == int64:
            self.values[let.var] = value
        self.visit_Node(let)

    def visit_Load(self, access: Load | Store | Prefetch) -> None:
        """Note the place."""
        if access.buffer is self.buffer:
            (index,) = access.indices
            if index is None or index.dtype.lanes > 1:
                self.complete = False
            else:
                self.indices.append(index)
        self.visit_Node(access)

    visit_Store = visit_Prefetch = visit_Load

    def visit_Search(self, search: Search) -> None:
        """A search reads places that are not known."""
        self.complete &= search.buffer is not self.buffer
        self.visit_Node(search)
