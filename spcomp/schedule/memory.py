"""Steps on where values live: cache_write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import DType, float32
from spcomp.errors import ScheduleError, Span
from spcomp.ir.arith import injective
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import Const, Expr, Load, Var, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter, PosFunc
from spcomp.ir.stmt import Alloc, For, Func, Stmt, Store, seq
from spcomp.ir.visitor import Rewriter, substitute, walk
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO
from spcomp.passes.scope import fingerprint, variables
from spcomp.schedule.nests import chain, find_loop, replaced
from spcomp.schedule.step import Step, known

MAX_ELEMENTS = 1024  # more than that is no register tile, and would not fit a stack frame either


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """``for k: for j: W[k] op= x  ->  for k: t = W[k] or init; for j: t op= x; W[k] = t``.

    The element, or tile, of the buffer that *block* updates inside *loop* lives in a local buffer.
    Legal where every loop from *loop* inwards is perfect, the loops that pick the element have
    constant trip counts, and nothing else in *loop* touches the buffer. Source: TVM's cache_write
    with reverse_compute_at.
    """

    name: ClassVar[str] = "cache_write"
    block: str
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the written tile in a local buffer."""
        outer = find_loop(func, self.loop, self, span)
        loops, block = chain(outer)
        assert isinstance(func, PosFunc)
        if not isinstance(block, Block) or block.name != self.block:
            blocks = [n.name for n in walk(func.body) if isinstance(n, Block)]
            raise ScheduleError(
                f"{self}: {self.loop!r} is not nested perfectly around the block",
                span or outer.span,
                hint=known(blocks, "blocks"),
            )
        tile = _Tile(self, block, loops[1:], span)
        return replaced(func, outer, outer.replace(body=tile.build(Names(func))))


class _Tile:
    """The local buffer of a cache_write, and what becomes of the block."""

    def __init__(self, step: CacheWrite, block: Block, loops: list[For], span: Span | None) -> None:
        self.step, self.block, self.loops, self.span = step, block, loops, span
        stores = [n for n in walk(block.body) if isinstance(n, Store)]
        if len(stores) != 1 or not isinstance(block.body, Store):
            raise self._error("the block does not store one element")
        self.target: AnyBuffer = stores[0].buffer
        self.indices = stores[0].indices
        key = fingerprint(self.indices)
        for node in (n for part in (block.body, block.init) if part for n in walk(part)):
            touches = isinstance(node, (Load, Store)) and node.buffer is self.target
            if touches and fingerprint(node.indices) != key:  # type: ignore[attr-defined]
                raise self._error(f"{self.target.name} is accessed at another place too")
        if any(isinstance(n, Load) and n.buffer is self.target for n in self._around()):
            raise self._error(f"a condition or a range reads {self.target.name}")
        inside = {loop.var for loop in loops}
        for own in block.iters:
            if own.kind == "R" and block.init and not variables(own.value) <= inside:
                raise self._error("a reduction goes on outside the loop, and starts there")
        self.spatial = self._spatial()
        self._check_guard()

    def _around(self) -> Iterator[Node]:
        """What is evaluated around the body: the guard, and the ranges of the loops."""
        parts = [end for loop in self.loops for end in (loop.begin, loop.end)]
        for part in (*parts, *self.block.iters, self.block.where):
            if part is not None:
                yield from walk(part)

    def _check_guard(self) -> None:
        """Raise unless the guard says the same of an element throughout."""
        lost = {loop.var for loop in self.loops} - {loop.var for loop in self.spatial}
        where = self.block.where
        if where is not None and variables(substitute(where, self.block.values)) & lost:
            raise self._error("the condition of the block depends on what is reduced")

    def _may_skip(self) -> bool:
        """Whether an element may keep its value: nothing starts it, or a loop runs no times."""
        own = self.block.iters
        drivers = {v for i in own if i.kind == "R" for v in variables(i.value)}
        others = {loop.var for loop in self.loops if loop not in self.spatial}
        return self.block.init is None or not others <= drivers

    def _error(self, why: str) -> ScheduleError:
        return ScheduleError(f"{self.step}: {why}", self.span or self.block.span)

    def _spatial(self) -> list[For]:
        """The loops inside that pick the element; the others reduce into it."""
        used: set[Var] = set()
        values = self.block.values
        for index in self.indices:
            if index is not None:
                used |= variables(substitute(index, values))
        reduced = {v for i in self.block.iters if i.kind == "R" for v in variables(i.value)}
        if used & reduced & {loop.var for loop in self.loops}:
            raise self._error("which element is stored depends on what is reduced")
        spatial = [loop for loop in self.loops if loop.var in used]
        size = 1
        for loop in spatial:
            if not isinstance(loop.end, Const):
                raise self._error(f"the trip count of {loop.var.name!r} is not a constant")
            size *= int(loop.end.value)
        if size > MAX_ELEMENTS:
            raise self._error(f"a tile of {size} elements is too large")
        inside = {loop.var for loop in self.loops}
        for loop in spatial:
            if (variables(loop.begin) | variables(loop.end)) & inside:
                raise self._error(f"the range of {loop.var.name!r} is not the same throughout")
        place = tuple(None if i is None else substitute(i, values) for i in self.indices)
        ranges = {loop.var: (loop.begin, loop.end) for loop in spatial}
        if not all(injective(place, loop.var, ranges) for loop in spatial):
            raise self._error("two places of the tile may be one element")
        return spatial

    def build(self, names: Names) -> Stmt:
        """Return the body of the loop: the tile, filled, updated, written back."""
        shape = tuple(loop.end for loop in self.spatial) or (const(1),)
        dtype = accumulator(self.target.dtype)
        local = Buffer(names.unique(f"{self.target.name}_local"), None, shape, dtype, "local")
        own = [BlockIter(names.var(f"v{x.var.name}"), x.end, x.var) for x in self.spatial]
        place: tuple[Expr, ...] = tuple(i.var for i in own) or (ZERO,)
        use = _UseLocal(self.target, local, place)
        block = self.block
        update = block.replace(
            iters=(*block.iters, *own),
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
        for own in self.block.iters:
            if own.kind == "S" and not variables(own.value) & inside:
                var = names.var(own.var.name)
                values[own.var] = var
                iters.append(own.replace(var=var, value=substitute(own.value, rename)))
        place: list[Expr] = []
        for loop in self.spatial:
            var = names.var(f"v{loop.var.name}")
            iters.append(BlockIter(var, loop.end, fresh[loop.var]))
            place.append(var)
        where = self.block.where
        if where is not None:
            where = substitute(substitute(where, rename), values)
        at = tuple(place) or (ZERO,)
        outside = tuple(None if i is None else substitute(i, values) for i in self.indices)
        there, here = Load(self.target, outside), Load(local, at)
        if reads:
            move = Store(local, at, cast(there, local.dtype))
        else:
            move = Store(self.target, outside, cast(here, self.target.dtype))
        name = names.unique(f"{self.block.name}{suffix}")
        body: Stmt = Block(name, tuple(iters), (), (), None, move, where)
        for loop in reversed(self.spatial):
            body = loop.replace(var=fresh[loop.var], body=body)
        return body


def accumulator(dtype: DType) -> DType:
    """The type in which values of *dtype* are accumulated: 16-bit floats in 32."""
    return float32 if dtype.is_float and dtype.bits < float32.bits else dtype


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
        return Store(self.local, self.place, value, span=store.span)
