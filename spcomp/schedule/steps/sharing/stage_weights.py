"""In position space: the step stage_weights, which computes the weight of an element once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import BinOp, Call, Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Replace, substitute
from spcomp.ir.stmt import Alloc, For, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import find_loop, nest, replace_stmt
from spcomp.schedule.nests.places import unconditional_nodes
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.hubs import Row


@dataclass(frozen=True, slots=True)
class StageWeights(Step):
    """``for i: for j in row(i): for k: s(f(i, j))  ->  t[i, j] = f(i, j); for i: ...: s(t[i, j])``.

    *inner* runs over the fiber of the row of *loop*. The largest expression in it that computes a
    function or quotient, and depends on nothing but the row and the element, is computed for all
    elements before, and kept in memory: each iteration of the loops inside reads it. Legal where it
    reads nothing that the loop writes, in a nest without conditions, and is always evaluated.
    """

    name: ClassVar[str] = "stage_weights"
    loop: str
    inner: str

    def plan(self, func: Func) -> _Weights:
        """Return the nest, and the expression."""
        loop, inner = (find_loop(func, name, self) for name in (self.loop, self.inner))
        return _Weights(self, func, loop, inner)

    def rewrite(self, func: Func, plan: _Weights) -> Func:
        """Return *func* with a nest that computes the expression for all elements."""
        return replace_stmt(func, plan.loop, plan.build(Names(func)))


class _Weights(Row):
    """A row, and the expression of its elements that is computed first."""

    def __init__(self, step: StageWeights, func: Func, loop: For, inner: For) -> None:
        super().__init__(step, func, loop, inner)
        statements = [n for n in walk(loop.body, skip=Expr) if isinstance(n, Stmt)]
        if any(not isinstance(n, For | Block | Store | Seq) for n in statements):
            raise self.error("a row does more than loops around blocks")
        if any(isinstance(n, Block) and n.where is not None for n in statements):
            raise self.error("a block inside is guarded")
        found = next(self._weights(), None)
        if found is None:
            raise self.error("no function or quotient in a loop depends on the element alone")
        self.store, self.part = found
        self.blocks = [n for n in statements if isinstance(n, Block) and _holds(n, self.store)]

    def _weights(self) -> Iterator[tuple[Store, Expr]]:
        """Yield the expressions to compute first, the largest before those in it."""
        own, written = {self.loop.var, self.inner.var}, writes_of(self.loop.body)
        others = {x.var for x in loops_of(self.loop.body)} - own
        deeper = dict.fromkeys(n for x in loops_of(self.inner.body) for n in walk(x.body))
        for store in (n for n in deeper if isinstance(n, Store)):
            for part in unconditional_nodes(store.value):
                if isinstance(part, Expr) and _is_costly(part):
                    value = substitute(part, self.values)
                    needs = variables(value)
                    fixed = not needs & others and not reads_of(value) & written
                    if fixed and self.inner.var in needs:
                        yield store, part

    def build(self, names: Names) -> Stmt:
        """Return the nest that computes the expression, and the one that reads it."""
        part, value = self.part, substitute(self.part, self.values)
        name = names.unique(f"{self.loop.var.name}_weights")
        kept = SparseBuffer(name, None, self.axis.path(), part.dtype)
        loops = [
            x.replace(var=names.var(f"{x.var.name}_weight"), kind="serial", attrs=())
            for x in (self.loop, self.inner)
        ]
        row, element = (names.var(f"v{x.var.name}") for x in loops)
        length = self.length(row)
        fresh = {self.loop.var: row, self.inner.var: element}
        store_it = Store(kept, (row, element), substitute(value, fresh), span=self.store.span)
        block = Block(
            names.unique(f"{name}1"), (BlockIter(element, length, loops[1].var),), (), (), None,
            store_it,
        )  # fmt: skip
        around = Block(
            names.unique(f"{name}0"),
            (BlockIter(row, self.loop.end, loops[0].var),),
            (), (), None,
            loops[1].replace(end=length, body=block),
        )  # fmt: skip
        first = nest(loops[:1], around)
        read = Load(kept, (self._known_as(self.loop.var), self._known_as(self.inner.var)))
        again = Replace(part, read).rewrite(self.loop)
        assert isinstance(again, Stmt)
        return Alloc(kept, annotate_regions(seq(first, again)))

    def _known_as(self, var: Var) -> Var:
        """Return the iter of a block that stands for the loop variable *var*; itself if none."""
        iters = (item.var for block in self.blocks for item in block.iters)
        return next((it for it in iters if self.values[it] is var), var)


def _holds(block: Block, store: Store) -> bool:
    return any(node is store for node in walk(block))


def _is_costly(part: Expr) -> bool:
    """Whether *part*, of floats, computes a function or a quotient."""
    return part.dtype.is_float and any(
        isinstance(n, Call) or (isinstance(n, BinOp) and n.op == "/" and n.dtype.is_float)
        for n in walk(part)
    )
