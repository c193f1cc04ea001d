"""Steps on blocks: lift_loop, decompose_reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.expr import Expr, Var
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.stmt import For, Func, Stmt, seq
from spcomp.ir.visitor import substitute, walk
from spcomp.passes.names import Names
from spcomp.passes.positions import both, conjuncts, from_zero
from spcomp.passes.scope import variables
from spcomp.schedule.nests import chain, find_loop, nest, replaced
from spcomp.schedule.split_nnz import starts_inside
from spcomp.schedule.step import Makes, Step


@dataclass(frozen=True, slots=True)
class LiftLoop(Step):
    """``block: for k in n: s  ->  for k in n: block: s``.

    Legal where the loop is all that the block around it holds, its range does not depend on what
    the block binds, and nothing of the block itself (a condition, an init) would run again.
    Source: SparseTIR's lift_loop.
    """

    name: ClassVar[str] = "lift_loop"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop around the block."""
        loop = find_loop(func, self.loop, self, span)
        block = enclosing(func, loop)
        if block is None:
            raise self._error("no block holds just this loop", loop, span)
        if block.init is not None or block.where is not None:
            raise self._error(f"block {block.name} has an init or a condition", loop, span)
        bound = {own.var for own in block.iters}
        if not from_zero(loop) or variables(loop.end) & bound:
            raise self._error("its range depends on the block", loop, span)
        if starts_inside(func, loop):
            raise self._error("it drives a reduction that starts inside", loop, span)
        own = BlockIter(Names(func).var(f"v{loop.var.name}"), loop.end, loop.var)
        inside = block.replace(
            iters=(*block.iters, own), body=substitute(loop.body, {loop.var: own.var})
        )
        return replaced(func, block, loop.replace(body=inside))

    def _error(self, why: str, loop: For, span: Span | None) -> ScheduleError:
        return ScheduleError(f"{self}: {why}", span or loop.span)


@dataclass(frozen=True, slots=True)
class DecomposeReduction(Step):
    """``for k: for j: (init; W[k] op= x)  ->  for k: init; for k: for j: W[k] op= x``.

    The init of *block* becomes a block of its own, in copies of the loops that pick the element,
    before *loop*. Legal where *loop* is nested perfectly around the block and has all loops inside
    it that drive the reduction. Source: TVM's decompose_reduction.
    """

    name: ClassVar[str] = "decompose_reduction"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the init in a nest of its own."""
        outer = find_loop(func, self.loop, self, span)
        loops, block = chain(outer)
        if not isinstance(block, Block) or block.name != self.block:
            raise self._error(
                f"{self.loop!r} is not nested perfectly around the block", outer, span
            )
        if block.init is None:
            raise self._error(f"block {self.block} has no init", outer, span)
        inside = {loop.var for loop in loops}
        every = {n.var for n in walk(func.body, skip=Expr) if isinstance(n, For)}
        for own in block.iters:
            if own.kind == "R" and variables(own.value) & (every - inside):
                raise self._error("a loop around it drives the reduction too", outer, span)
        started = nest(loops, block.replace(init=None))
        return replaced(func, outer, seq(self._init(func, loops, block), started))

    def _init(self, func: Func, loops: list[For], block: Block) -> Stmt:
        """Return the nest that starts the reduction for each element."""
        names = Names(func)
        reduced = {v for own in block.iters if own.kind == "R" for v in variables(own.value)}
        spatial = [own for own in block.iters if own.kind == "S"]
        picks = {v for own in spatial for v in variables(own.value)}
        around = [loop for loop in loops if loop.var in picks and loop.var not in reduced]
        fresh: dict[Var, Expr] = {loop.var: names.var(loop.var.name) for loop in around}
        iters = [
            own.replace(var=names.var(own.var.name), value=substitute(own.value, fresh))
            for own in spatial
        ]
        values: dict[Var, Expr] = {
            old.var: new.var for old, new in zip(spatial, iters, strict=True)
        }
        lost = reduced | {own.var for own in block.iters if own.kind == "R"}
        where: Expr | None = None
        for term in conjuncts(block.where):
            if not variables(term) & lost:
                where = both(where, substitute(substitute(term, fresh), values))
        assert block.init is not None
        body: Stmt = Block(
            names.unique(f"{block.name}_init"),
            tuple(iters),
            (),
            (),
            None,
            substitute(block.init, values),
            where,
        )
        for loop in reversed(around):
            var = fresh[loop.var]
            assert isinstance(var, Var)
            body = loop.replace(var=var, end=substitute(loop.end, fresh), body=body)
        return body

    def _error(self, why: str, loop: For, span: Span | None) -> ScheduleError:
        return ScheduleError(f"{self}: {why}", span or loop.span)


def enclosing(func: Func, loop: For) -> Block | None:
    """Return the block whose body is *loop*, if there is one."""
    blocks = (n for n in walk(func.body, skip=Expr) if isinstance(n, Block))
    return next((block for block in blocks if block.body is loop), None)
