"""Under the steps: allocate a buffer in the only loop that uses it, as small as possible."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.arith.bounds import Env, Interval, bounds_of
from spcomp.ir.arith.linear import ONE, Algebra, Linear, mentions
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Redirect, Replace
from spcomp.ir.stmt import Alloc, For, Prefetch, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import Accesses, loops_of
from spcomp.schedule.nests.nests import replace_stmt
from spcomp.schedule.nests.sites import path_to

Indices: TypeAlias = tuple[Expr | None, ...]
SMALL = 1 << 16  # an extent from mere bounds of an index stays below this


def sink_alloc(func: Func, buffer: AnyBuffer, name: str) -> Func:
    """Return *func* with *buffer* allocated in the loop called *name*, as small as possible.

    *func* comes back unchanged where other statements use the buffer, where an iteration reads what
    an earlier one stored, and where the buffer is no smaller there and the loops are serial.
    """
    alloc = next((n for n in walk(func.body) if isinstance(n, Alloc) and n.buffer is buffer), None)
    loop = next(loop for loop in loops_of(func.body) if loop.var.name == name)
    if alloc is None or not _belongs(func, buffer, loop):
        return func
    path = path_to(func, loop)
    if not any(node is alloc for node in path):
        return func
    accesses = Accesses()
    for node in path:
        accesses.enter(node)
    accesses.visit(loop.body)
    body, local = loop.body, buffer
    if isinstance(buffer, Buffer) and buffer.strides is None:
        indices = [a.indices for a in accesses.accesses if a.buffer is buffer]
        dims = [
            _Dim(func, accesses, at, extent)
            for at, extent in zip(zip(*indices, strict=True), buffer.shape, strict=True)
        ]
        if any(dim.extent is not extent for dim, extent in zip(dims, buffer.shape, strict=True)):
            local = buffer.replace(shape=tuple(dim.extent for dim in dims))
            body = Redirect(buffer, local, partial(_rebased, local, dims)).rewrite(body)
    shared = any(isinstance(n, For) and n.kind in ("parallel", "bound") for n in path)
    if local is buffer and not shared:
        return func
    inside = loop.replace(body=Alloc(local, body, span=alloc.span))
    return replace_stmt(func, alloc, Replace(loop, inside).rewrite(alloc.body))


def _belongs(func: Func, buffer: AnyBuffer, loop: For) -> bool:
    """Whether only *loop* touches the buffer, and each iteration writes it first."""
    everywhere = [n for n in walk(func.body) if _touches(n, buffer)]
    inside = [n for n in walk(loop.body) if _touches(n, buffer)]
    if len(everywhere) != len(inside) or any(isinstance(n, Search) for n in inside):
        return False
    block = sole_writer(loop.body, buffer)
    if block is None:
        return False
    reads = any(isinstance(n, Load) and n.buffer is buffer for n in walk(block))
    loop_vars = {inner.var for inner in loops_of(loop.body)}
    first = next(n for n in walk(loop.body) if n is block or (_touches(n, buffer)))
    if first is not block:
        return False
    drivers = {v for it in block.iters if it.kind == "R" for v in variables(it.value)}
    return not reads or (block.init is not None and drivers - set(func.params) <= loop_vars)


def sole_writer(stmt: Stmt, buffer: AnyBuffer) -> Block | None:
    """Return the only block in *stmt* that writes *buffer*; None if there are others, or none."""
    writers = [b for b in _leaves(stmt) if any(_stores(n, buffer) for n in walk(b))]
    return writers[0] if len(writers) == 1 else None


def _touches(node: Node, buffer: AnyBuffer) -> bool:
    return isinstance(node, Load | Store | Search | Prefetch) and node.buffer is buffer


def _stores(node: Node, buffer: AnyBuffer) -> bool:
    return isinstance(node, Store) and node.buffer is buffer


def _leaves(stmt: Stmt) -> Iterable[Block]:
    blocks = [n for n in walk(stmt, skip=Expr) if isinstance(n, Block)]
    return (b for b in blocks if not any(isinstance(n, Block) and n is not b for n in walk(b)))


class _Dim:
    """One dimension of the buffer inside the loop: its *base* in an iteration, and its *extent*.

    Both are as outside where no smaller extent is known before the loop.
    """

    def __init__(
        self, func: Func, accesses: Accesses, indices: Iterable[Expr | None], extent: Expr
    ) -> None:
        self.base: Expr = ZERO
        self.extent = extent
        self.looped = False  # whether loops inside, perhaps of one iteration, run along it
        self.inner = set(accesses.inner) | accesses.opaque
        self.env = Env({v: _interval(ends) for v, ends in accesses.inner.items()})
        algebra = Algebra(Env(), trusted=True)
        parts: list[tuple[Linear, Linear]] = []
        for index in indices:
            assert index is not None
            form = algebra.of(cast(index, int64))
            local, base_form = form.split(
                lambda key, term: key == ONE or mentions(term.atoms, self.inner)
            )
            parts.append((local, base_form))
            self.looped |= mentions(local.atoms, self.inner)
        if len({base_form.key for _, base_form in parts}) != 1 or any(
            any(read_by(*local.atoms)) for local, _ in parts
        ):
            return
        bounds = Interval(0, 0)
        first = True
        for local, _ in parts:
            interval = bounds_of(simplify(local.expr()), self.env)
            bounds, first = (interval if first else bounds | interval), False
        base = parts[0][1]
        if all(self._counts(func, accesses, local) for local, _ in parts):
            ends = {id(e): e for local, _ in parts if (e := self._end(accesses, local)) is not None}
            size: Expr | None = None
            for end in ends.values():
                size = end if size is None else simplify(binary("max", size, end))
            self.base, self.extent = simplify(base.expr()), size or const(1)
        elif (
            bounds.low is not None and bounds.high is not None and bounds.high - bounds.low < SMALL
        ):
            self.base = simplify(base.shift(bounds.low).expr())
            self.extent = const(bounds.high - bounds.low + 1)

    def _end(self, accesses: Accesses, form: Linear) -> Expr | None:
        var = form.single
        return accesses.inner[var][1] if isinstance(var, Var) else None

    def _counts(self, func: Func, accesses: Accesses, form: Linear) -> bool:
        """Whether *form* is 0, or a single inner loop variable with an end made of parameters."""
        if not form.terms:
            return True
        var = form.single
        if not isinstance(var, Var) or var not in accesses.inner:
            return False
        end = accesses.inner[var][1]
        return variables(end) <= set(func.params) and not any(read_by(end))


def _interval(ends: tuple[Expr, Expr]) -> Interval:
    low, high = (bounds_of(end) for end in ends)
    last = None if high.high is None or high.high > 2**62 else high.high - 1
    return Interval(None if low.low is None or low.low < -(2**62) else low.low, last)


def _rebased(local: Buffer, dims: list[_Dim], indices: Indices) -> Indices:
    """Return *indices* in *local*, from which the bases of *dims* are subtracted."""
    rebased: list[Expr | None] = []
    for index, dim, extent in zip(indices, dims, local.shape, strict=True):
        if not dim.looped and isinstance(extent, Const) and extent.value == 1:
            rebased.append(ZERO)
            continue
        assert index is not None
        plain = isinstance(dim.base, Const) and dim.base.value == 0
        rebased.append(index if plain else simplify(binary("-", index, dim.base)))
    return tuple(rebased)
