"""III to III: nests of a function that asks for horizontal fusion share one grid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr, binary, const
from spcomp.ir.func import SHARE_GRID
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, If, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.passes.base import FuncPass, Stage

BLOCKS = "blockIdx.x"
ATTRIBUTE = "horizontal_fuse"


@dataclass(frozen=True, slots=True)
class FuseKernels(FuncPass):
    """``for a in blocks: s; for b in blocks: t  ->  for c in blocks: if c < a's: s else: t``.

    Only functions with the attribute ``horizontal_fuse`` are changed, and only neighbouring nests
    whose outermost loops are bound to ``blockIdx.x`` are fused. They then run at the same time:
    what several of them update becomes an atomic update, and a nest that touches in another way
    what another one writes stays a kernel of its own. With the attribute ``share_grid`` it also
    does so if it updates that. Source: SparseTIR, section 3.4.1.
    """

    name: ClassVar[str] = "fuse_kernels"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with fewer nests."""
        if not func.attr(ATTRIBUTE) and not func.attr(SHARE_GRID):
            return func
        fuser = _Fuser(Names(func), apart=not func.attr(ATTRIBUTE))
        return func.replace(body=fuser.rewrite(func.body))


class _Fuser(Rewriter):
    def __init__(self, names: Names, *, apart: bool) -> None:
        self.names, self.apart = names, apart

    def visit_For(self, loop: For) -> Node:
        return loop  # only what stands outside all loops is fused

    def visit_Seq(self, stmts: Seq) -> Node:
        parts: list[Stmt] = []
        nests: list[For] = []
        for stmt in [*map(self.rewrite, stmts.body), None]:
            if isinstance(stmt, For) and stmt.thread == BLOCKS and self._fit([*nests, stmt]):
                nests.append(stmt)
                continue
            parts += [self._fused(nests)] if nests else []
            nests = []
            if isinstance(stmt, For) and stmt.thread == BLOCKS:
                nests = [stmt]
            elif stmt is not None:
                parts.append(stmt)
        return seq(*parts)

    def _fit(self, nests: list[For]) -> bool:
        if self.apart and any(count > 1 for count in _touching(nests).values()):
            return False
        return _fit(nests)

    def _fused(self, nests: list[For]) -> Stmt:
        """Return one loop over the blocks of all *nests*, those of the first come first."""
        if len(nests) == 1:
            return nests[0]
        shared = {place for place, nests_ in _touching(nests).items() if nests_ > 1}
        block = self.names.var("block")
        ends: list[Expr] = []
        total: Expr = const(0)
        bodies: list[Stmt] = []
        for nest in nests:
            trips = simplify(binary("max", binary("-", nest.end, nest.begin), 0))
            index = plus(nest.begin, simplify(binary("-", block, total)))
            total = simplify(plus(total, trips))
            ends.append(total)
            body = _Atomic(shared).rewrite(nest.body)
            bodies.append(substitute(body, {nest.var: simplify(index)}))
        result = bodies.pop()
        for end, body in zip(reversed(ends[:-1]), reversed(bodies), strict=True):
            result = If(binary("<", block, end), body, result, span=body.span)
        first = nests[0]
        return first.replace(var=block, begin=const(0), end=total, body=result)


def _touching(nests: Iterable[For]) -> dict[object, int]:
    """Return how many of *nests* touch each memory that one of them writes."""
    count: dict[object, int] = {}
    written: set[object] = set()
    for nest in nests:
        writes = writes_of(nest)
        for place in reads_of(nest) | writes:
            count[place] = count.get(place, 0) + 1
        written |= writes
    return {place: n for place, n in count.items() if place in written}


def _fit(nests: list[For]) -> bool:
    """Whether *nests* may run at the same time: all that they share, they update alike."""
    shared = {place for place, count in _touching(nests).items() if count > 1}
    combiners: dict[object, set[str]] = {place: set() for place in shared}
    updates: set[Node] = set()  # the loads of updates
    for store in (n for nest in nests for n in walk(nest) if isinstance(n, Store)):
        place = memory_of(store.buffer)
        if place not in shared:
            continue
        reduction = as_reduction(store)
        if reduction is None or reduction.is_tuple or store.mask is not None:
            return False
        combiners[place].add(reduction.combiner)
        updates.update(
            n
            for n in walk(store.value)
            if isinstance(n, Load) and n.buffer is store.buffer and _same_place(n, store)
        )
    reads = (n for nest in nests for n in walk(nest) if isinstance(n, Load | Search))
    plain = any(memory_of(n.buffer) in shared and n not in updates for n in reads)
    return not plain and all(len(kinds) == 1 for kinds in combiners.values())


def _same_place(load: Load, store: Store) -> bool:
    return expr_equal(load.indices[0], store.indices[0])


class _Atomic(Rewriter):
    """Lets others update the elements of *places*, too."""

    def __init__(self, places: set[object]) -> None:
        self.places = places

    def visit_Store(self, store: Store) -> Node:
        return store.replace(atomic=True) if memory_of(store.buffer) in self.places else store
