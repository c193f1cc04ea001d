"""I to II, on request: searches in blocks that run first, and keep their results in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Pos, path_indices
from spcomp.ir.axis import AnyBuffer, Axis, Fuse, SparseBuffer, domain_axes
from spcomp.ir.expr import Expr, Var, cast
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Store
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk
from spcomp.passes.iterations.scope import OpenLoop, Scope


@dataclass(frozen=True, slots=True)
class SearchBlock:
    """``for loops: store``: *buffer* gets what a search finds in each iteration."""

    buffer: SparseBuffer
    loops: tuple[OpenLoop, ...]
    store: Store


class SearchBlocks:
    """The searches of a function whose results are kept; :attr:`blocks` in their running order.

    A result has an element for each position of the axes that the search depends on; SparseTIR
    calls it ``mid_0``, and the block that fills it ``binary_search_block_0_0``. A search whose
    loops have no such positions (over attached or merged axes, in an iteration within another)
    stays where it is, as does one in a buffer that the function writes. Source: SparseTIR,
    src/tir/transforms/lower_sparse_iter.cc.
    """

    def __init__(self, names: Names, written: frozenset[AnyBuffer]) -> None:
        self.names, self.written = names, written
        self.blocks: list[SearchBlock] = []
        self._loads: dict[object, Expr] = {}

    def keep(self, scope: Scope, value: Expr) -> Expr | None:
        """Return the load of *value*, in the iteration of *scope*; None if it is not kept."""
        search = next((n for n in walk(value) if isinstance(n, Search)), None)
        if search is None:
            return None
        value = _inline(scope, value)
        key = fingerprint(value)
        if key not in self._loads:
            loops = self._loops(scope, value)
            places = _places(scope, loops)
            if not places:
                return None
            self._loads[key] = self._add(search, value, loops, places)
        return self._loads[key]

    def _loops(self, scope: Scope, value: Expr) -> list[OpenLoop]:
        """Return the loops that *value* depends on, in order; none if it depends on more."""
        loops = next((s.loops for s in scope.segments if s.loops), [])
        deciding: set[Var] = set()
        pending = set(variables(value) - scope.params)
        while pending:
            var = pending.pop()
            loop = next((x for x in loops if x.block_var is var), None)
            if loop is None or not isinstance(loop.domain, (Axis, Fuse)):
                return []
            extent = _inline(scope, loop.extent)
            if not self._is_input(extent):
                return []
            deciding.add(var)
            parent = domain_axes(loop.domain)[0].parent
            above = {x.block_var for x in loops if parent in domain_axes(x.domain)}
            pending |= (variables(extent) | above) - scope.params - deciding
        return [loop for loop in loops if loop.block_var in deciding]

    def _is_input(self, extent: Expr) -> bool:
        """Whether *extent* is known before the search blocks run."""
        results = {block.buffer for block in self.blocks} | self.written
        loads = (n for n in walk(extent) if isinstance(n, (Load, Search)))
        return all(isinstance(n, Load) and n.buffer not in results for n in loads)

    def _add(
        self, search: Search, value: Expr, loops: list[OpenLoop], places: dict[Axis, Pos]
    ) -> Expr:
        """Add the block that keeps *value* for all *places*; return the load of it."""
        name, source = self.names.unique(f"mid_{len(self.blocks)}"), search.buffer
        wide = isinstance(source, SparseBuffer) and source.axes[-1].nnz_cols is not None
        dtype = int64 if wide else source.dtype  # an indptr has positions of another axis
        buffer = SparseBuffer(name, None, tuple(places), dtype)
        indices = path_indices(buffer, places)
        fresh: dict[Var, Expr] = {}
        renamed = []
        for loop in loops:
            var, block_var = self.names.var(loop.var.name), self.names.var(loop.block_var.name)
            fresh |= {loop.var: var, loop.block_var: block_var}
            renamed.append((loop, var, block_var))
        inner = tuple(
            replace(loop, var=var, block_var=new_block_var, extent=substitute(loop.extent, fresh))
            for loop, var, new_block_var in renamed
        )
        store = Store(buffer, indices, cast(value, buffer.dtype), span=search.span)
        self.blocks.append(SearchBlock(buffer, inner, substitute(store, fresh)))
        return cast(Load(buffer, indices), int64)


def _inline(scope: Scope, value: Expr) -> Expr:
    """Return *value* in terms of loop variables, without lookups."""
    values = {x.var: x.value for segment in scope.segments for x in segment.lookups}
    while variables(value) & values.keys():
        value = substitute(value, values)
    return value


def _places(scope: Scope, loops: list[OpenLoop]) -> dict[Axis, Pos]:
    """Return the positions of *loops* on their axes; nothing if no buffer can lie along these."""
    places: dict[Axis, Pos] = {}
    for loop in loops:
        for var in loop.vars:
            places |= scope.bindings[var].positions
    for axis in places:
        if not places.keys() >= {*axis.path()} or (axis.is_variable and axis.nnz is None):
            return {}
    return places
