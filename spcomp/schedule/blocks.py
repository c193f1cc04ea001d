"""Steps on blocks: lift_loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.expr import Expr
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.stmt import For, Func
from spcomp.ir.visitor import substitute, walk
from spcomp.passes.names import Names
from spcomp.passes.positions import from_zero
from spcomp.passes.scope import variables
from spcomp.schedule.nests import find_loop, replaced
from spcomp.schedule.step import Step


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
        own = BlockIter(Names(func).var(f"v{loop.var.name}"), loop.end, loop.var)
        inside = block.replace(
            iters=(*block.iters, own), body=substitute(loop.body, {loop.var: own.var})
        )
        return replaced(func, block, loop.replace(body=inside))

    def _error(self, why: str, loop: For, span: Span | None) -> ScheduleError:
        return ScheduleError(f"{self}: {why}", span or loop.span)


def enclosing(func: Func, loop: For) -> Block | None:
    """Return the block whose body is *loop*, if there is one."""
    blocks = (n for n in walk(func.body, skip=Expr) if isinstance(n, Block))
    return next((block for block in blocks if block.body is loop), None)
