"""I to II, on request: searches as blocks of their own that run first, their results in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import fingerprint, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Pos, path_indices
from spcomp.ir.axis import AnyBuffer, Axis, Fuse, SparseBuffer, domain_axes
from spcomp.ir.expr import Expr, Var, cast
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import walk
from spcomp.passes.iterations.scope import OpenLoop, Scope


@dataclass(frozen=True, slots=True)
class SearchBlock:
    """``for loops: store``: what a search finds in each iteration, kept in *buffer*."""

    buffer: SparseBuffer
    loops: tuple[OpenLoop, ...]
    store: Store


class SearchBlocks:
    """The searches of a function whose results are kept; :attr:`made` in the order they run in.

    A result has an element for each position of the axes that the search depends on; it is what
    SparseTIR calls ``mid_0``, and is filled by the block ``binary_search_block_0_0``. A search
    whose loops do not say such positions (over attached or merged axes, in an iteration within
    another) stays where it is, as does one in what the function writes. Source: SparseTIR,
    src/tir/transforms/lower_sparse_iter.cc.
    """

    def __init__(self, names: Names, written: frozenset[AnyBuffer]) -> None:
        self.names, self.written = names, written
        self.made: list[SearchBlock] = []
        self._known: dict[object, Expr] = {}

    def keep(self, scope: Scope, value: Expr) -> Expr | None:
        """Return the load of what *value* is, in the iteration of *scope*; None if it stays."""
        search = next((n for n in walk(value) if isinstance(n, Search)), None)
        if search is None:
            return None
        value = _inlined(scope, value)
        key = fingerprint(value)
        if key not in self._known:
            loops = self._loops(scope, value)
            places = _places(scope, loops)
            if not places:
                return None
            self._known[key] = self._made(search, value, loops, places)
        return self._known[key]

    def _loops(self, scope: Scope, value: Expr) -> list[OpenLoop]:
        """Return the loops that decide *value*, in order; none if something else does too."""
        own = next((s.loops for s in scope.segments if s.loops), [])
        needed: set[Var] = set()
        pending = set(variables(value) - scope.params)
        while pending:
            var = pending.pop()
            loop = next((x for x in own if x.block_var is var), None)
            if loop is None or not isinstance(loop.domain, (Axis, Fuse)):
                return []
            extent = _inlined(scope, loop.extent)
            if not self._is_given(extent):
                return []
            needed.add(var)
            parent = domain_axes(loop.domain)[0].parent
            above = {x.block_var for x in own if parent in domain_axes(x.domain)}
            pending |= (variables(extent) | above) - scope.params - needed
        return [loop for loop in own if loop.block_var in needed]

    def _is_given(self, extent: Expr) -> bool:
        """Whether *extent* is known before everything else runs."""
        kept = {block.buffer for block in self.made} | self.written
        loads = (n for n in walk(extent) if isinstance(n, (Load, Search)))
        return all(isinstance(n, Load) and n.buffer not in kept for n in loads)

    def _made(
        self, search: Search, value: Expr, loops: list[OpenLoop], places: dict[Axis, Pos]
    ) -> Expr:
        """Keep *value*, which has *places*; return its load."""
        name, searched = self.names.unique(f"mid_{len(self.made)}"), search.buffer
        wide = isinstance(searched, SparseBuffer) and searched.axes[-1].nnz_cols is not None
        dtype = int64 if wide else searched.dtype  # an indptr has the places of others
        buffer = SparseBuffer(name, None, tuple(places), dtype)
        indices = path_indices(buffer, places)
        fresh: dict[Var, Expr] = {}
        opened = []
        for loop in loops:
            var, block_var = self.names.var(loop.var.name), self.names.var(loop.block_var.name)
            fresh |= {loop.var: var, loop.block_var: block_var}
            opened.append((loop, var, block_var))
        inner = tuple(
            replace(loop, var=var, block_var=own, extent=substitute(loop.extent, fresh))
            for loop, var, own in opened
        )
        store = Store(buffer, indices, cast(value, buffer.dtype), span=search.span)
        self.made.append(SearchBlock(buffer, inner, substitute(store, fresh)))
        return cast(Load(buffer, indices), int64)


def _inlined(scope: Scope, value: Expr) -> Expr:
    """Return *value* in terms of loops alone, without lookups."""
    found = {x.var: x.value for segment in scope.segments for x in segment.lookups}
    while variables(value) & found.keys():
        value = substitute(value, found)
    return value


def _places(scope: Scope, loops: list[OpenLoop]) -> dict[Axis, Pos]:
    """Return where *loops* stand on their axes; nothing if no buffer lies along these."""
    places: dict[Axis, Pos] = {}
    for loop in loops:
        for var in loop.vars:
            places |= scope.bindings[var].positions
    for axis in places:
        if not places.keys() >= {*axis.path()} or (axis.is_variable and axis.nnz is None):
            return {}
    return places
