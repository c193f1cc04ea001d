"""In position space: the step transform_layout, which changes how a local buffer lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.simplify import prove, simplify
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Const, Expr, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Region
from spcomp.ir.rewrite import Indices, Redirect
from spcomp.ir.stmt import Alloc, Store
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_block
from spcomp.schedule.nests.sites import nth_buffer, refusal
from spcomp.schedule.steps.base import Step, names_hint

MapLike: TypeAlias = IndexMap | str | Callable[..., object]


@dataclass(frozen=True, slots=True)
class TransformLayout(Step):
    """``X = alloc(n, m): X[i, j]  ->  X = alloc(m, n): X[j, i]`` for any invertible index map.

    *buffer* is one that *block* reads or writes, by name or as ("read", 0), ("write", 0), ...;
    *index_map* is the text of a lambda from old to new indices, made of ``+ - * // %``. Legal for a
    dense buffer that the program allocates, if no two elements get the same place. Source: TVM's
    transform_layout.
    """

    name: ClassVar[str] = "transform_layout"
    block: str
    buffer: str | tuple[str, int]
    index_map: str

    def plan(self, func: Func) -> tuple[Buffer, Buffer, IndexMap]:
        """Return the buffer, the one that replaces it, and the map to the new indices."""
        block = find_block(func, self.block, self)
        buffer, span = self._buffer(block), block.span
        if not isinstance(buffer, Buffer) or buffer.data is not None:
            raise refusal(
                self,
                f"{buffer.name} is a parameter, or lies along sparse axes",
                span,
                "cache_read or cache_write it first, and change the layout of the copy",
            )
        for node in walk(func.body):
            searched = node.buffer if isinstance(node, Search) else getattr(node, "indices", None)
            if isinstance(node, (Search, Cursor)) and searched is buffer:
                raise refusal(self, f"{buffer.name} is searched", span)
        return buffer, *self._new_layout(buffer, span)

    def rewrite(self, func: Func, plan: tuple[Buffer, Buffer, IndexMap]) -> Func:
        """Return *func* with the buffer in its new layout."""
        return func.replace(body=_Lay(*plan).rewrite(func.body))

    def _buffer(self, block: Block) -> AnyBuffer:
        span = block.span
        if isinstance(self.buffer, str):
            used = {n.buffer.name: n.buffer for n in walk(block) if isinstance(n, (Load, Store))}
            if self.buffer not in used:
                why = f"block {self.block} has no {self.buffer}"
                raise refusal(self, why, span, names_hint(used, "buffers"))
            return used[self.buffer]
        which, index = self.buffer
        if which not in ("read", "write"):
            raise refusal(self, 'a buffer is a name, ("read", index) or ("write", index)', span)
        return nth_buffer(self, block, index, span, writes=which == "write")

    def _new_layout(self, buffer: Buffer, span: Span | None) -> tuple[Buffer, IndexMap]:
        """Return the buffer that replaces *buffer*, and the map to its indices."""
        try:
            mapping = IndexMap.from_text(self.index_map)
        except ValueError as error:
            raise refusal(self, str(error), span) from error
        sizes = [cast(extent, int64) for extent in buffer.shape]
        if len(mapping.params) != len(sizes):
            raise refusal(self, f"{buffer.name} has {len(sizes)} axes", span)
        extents = [int(n.value) if isinstance(n, Const) else n for n in sizes]
        if mapping.inverse(extents) is None:
            raise refusal(
                self, "two elements may get one place, or the map is not understood", span
            )
        ranges = {p: (ZERO, n) for p, n in zip(mapping.params, sizes, strict=True)}
        most = {p: simplify(BinOp("-", n, const(1))) for p, (_, n) in ranges.items()}
        shape: list[Expr] = []
        for result in mapping.results:
            last = _greatest(result, most)
            if last is None or not prove(BinOp("<=", ZERO, result), ranges):
                raise refusal(self, "how far a new index goes is not known", span)
            shape.append(simplify(BinOp("+", last, const(1))))
        return buffer.replace(shape=tuple(shape)), mapping


def as_text(index_map: MapLike) -> str:
    """Return *index_map* as text, as steps and traces hold it; raises ScheduleError."""
    if isinstance(index_map, str):
        return index_map
    try:
        mapping = index_map if isinstance(index_map, IndexMap) else IndexMap.from_func(index_map)
        return str(mapping)
    except (ValueError, TypeError, AttributeError) as error:
        raise ScheduleError(f"transform_layout: no index map: {error}") from error


def _greatest(expr: Expr, most: dict[Var, Expr]) -> Expr | None:
    """Return an upper bound of *expr*, whose variables go from 0 to *most*; None: not known."""
    match expr:
        case Var():
            return most[expr]
        case Const():
            return expr
        case BinOp(op="+", lhs=a, rhs=b):
            lhs, rhs = _greatest(a, most), _greatest(b, most)
            return None if lhs is None or rhs is None else BinOp("+", lhs, rhs)
        case BinOp(op="*" | "//" as op, lhs=a, rhs=Const(value=int(k))) if k > 0:
            lhs = _greatest(a, most)
            return None if lhs is None else BinOp(op, lhs, const(k))
        case BinOp(op="-", lhs=a, rhs=Const(value=k)):
            lhs = _greatest(a, most)
            return None if lhs is None else BinOp("-", lhs, const(k))
        case BinOp(op="%", rhs=Const(value=int(k))) if k > 0:
            return const(k - 1)
    return None


class _Lay(Redirect):
    """Replaces *old* by *new*, with mapped indices."""

    def __init__(self, old: Buffer, new: Buffer, mapping: IndexMap) -> None:
        super().__init__(old, new, self._at)
        self.new, self.mapping = new, mapping

    def _at(self, indices: Indices) -> Indices:
        place = [cast(i, int64) for i in indices if i is not None]
        return tuple(simplify(index) for index in self.mapping.apply(place))

    def visit_Alloc(self, alloc: Alloc) -> Node:
        new = self.visit_Node(alloc)
        assert isinstance(new, Alloc)
        return new.replace(buffer=self.new) if alloc.buffer is self.buffer else new

    def visit_Region(self, region: Region) -> Node:
        if region.buffer is not self.buffer:
            return self.visit_Node(region)
        sizes = self.new.shape
        return Region(self.new, tuple(ZERO for _ in sizes), sizes, span=region.span)
