"""II to III: sparse buffers become one-dimensional, positions become offsets; axes are gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.forest import check_layouts
from spcomp.ir.analysis.memory import Layout
from spcomp.ir.axis import AnyBuffer, BufferDomain
from spcomp.ir.expr import Expr
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc, PosFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, Prefetch, Store
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class FlattenBuffers(FuncPass):
    """``A[i, j]  ->  A[J_indptr[i] + j]`` for A over I and J, sparse_variable under I."""

    name: ClassVar[str] = "flatten_buffers"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: PosFunc) -> FlatFunc:
        """Return *func* over flat buffers of the same names."""
        check_layouts(func)
        layout = Layout({b.data: b for b in func.buffers if b.data is not None})
        buffers = [layout.flat(buffer) for buffer in func.buffers]
        body = _Flatten(layout).rewrite(func.body)
        domains = tuple(BufferDomain(layout.flat(d.buffer), d.low, d.high) for d in func.domains)
        all_buffers = (*buffers, *layout.indptrs)
        return FlatFunc(
            func.name, func.params, (), all_buffers, body, domains, func.attrs, span=func.span
        )


class _Flatten(Rewriter):
    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def _offset(self, buffer: AnyBuffer, indices: tuple[Expr | None, ...]) -> Expr:
        inner = tuple(None if i is None else self.rewrite(i) for i in indices)
        return self.layout.offset(buffer, inner)

    def visit_Load(self, load: Load) -> Node:
        return load.replace(
            buffer=self.layout.flat(load.buffer), indices=(self._offset(load.buffer, load.indices),)
        )

    def visit_Search(self, search: Search) -> Node:
        new = self.visit_Node(search)
        assert isinstance(new, Search)
        return new.replace(buffer=self.layout.flat(search.buffer))

    def visit_Store(self, store: Store) -> Node:
        return store.replace(
            buffer=self.layout.flat(store.buffer),
            indices=(self._offset(store.buffer, store.indices),),
            value=self.rewrite(store.value),
        )

    def visit_Alloc(self, alloc: Alloc) -> Node:
        return Alloc(self.layout.flat(alloc.buffer), self.rewrite(alloc.body), span=alloc.span)

    def visit_Prefetch(self, prefetch: Prefetch) -> Node:
        offset = self._offset(prefetch.buffer, prefetch.indices)
        return prefetch.replace(buffer=self.layout.flat(prefetch.buffer), indices=(offset,))
