"""Steps of stage II on blocks: lift_loop, reorder_block_iter_var, hide_buffer_access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_block, find_loop, replaced
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.sharing.split_nnz import starts_inside


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


@dataclass(frozen=True, slots=True)
class ReorderBlockIterVar(Step):
    """``block (va, vb): s  ->  block (vb, va): s``: its iters in another order.

    *new_order*: the old places of the iters, each once, in their new order. The iters say what the
    block calls the loops around it, and not in which order these run, so this is always legal.
    Source: TVM's reorder_block_iter_var.
    """

    name: ClassVar[str] = "reorder_block_iter_var"
    makes: ClassVar[Makes] = "blocks"
    block: str
    new_order: tuple[int, ...]

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the iters of the block in the new order."""
        block = find_block(func, self.block, self, span)
        places = range(len(block.iters))
        if not are_places(self.new_order, len(places)) or len(self.new_order) != len(places):
            raise ScheduleError(
                f"{self}: the order is not one of the {len(places)} iters of the block",
                span or block.span,
            )
        iters = tuple(block.iters[place] for place in self.new_order)
        return replaced(func, block, block.replace(iters=iters))


@dataclass(frozen=True, slots=True)
class HideBufferAccess(Step):
    """``block {reads A, B}: s  ->  block {reads A}: s``: it no longer declares some regions.

    *buf_type*: ``read`` or ``write``; *indices*: places in the list of these regions. A region is
    what a block declares to tensorize and to the steps that number its buffers; what is legal is
    decided by what its statements touch, so this is, too. Source: SparseTIR's hide_buffer_access.
    """

    name: ClassVar[str] = "hide_buffer_access"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buf_type: str
    indices: tuple[int, ...]

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with fewer regions on the block."""
        block = find_block(func, self.block, self, span)
        if self.buf_type not in ("read", "write"):
            raise ScheduleError(
                f"{self}: {self.buf_type!r} is neither read nor write", span or block.span
            )
        what = f"{self.buf_type}s"
        regions = getattr(block, what)
        if not are_places(self.indices, len(regions)):
            raise ScheduleError(
                f"{self}: the block declares {len(regions)} {what}, counted from 0",
                span or block.span,
            )
        kept = tuple(region for k, region in enumerate(regions) if k not in self.indices)
        return replaced(func, block, block.replace(**{what: kept}))


def are_places(given: tuple[int, ...], count: int) -> bool:
    """Whether *given* are places in a list of *count*, none of them twice."""
    known = set(range(count))
    return all(isinstance(k, int) and k in known for k in given) and len({*given}) == len(given)


def enclosing(func: Func, loop: For) -> Block | None:
    """Return the block whose body is *loop*, if there is one."""
    blocks = (n for n in walk(func.body, skip=Expr) if isinstance(n, Block))
    return next((block for block in blocks if block.body is loop), None)
