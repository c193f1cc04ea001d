"""In position space: the steps lift_loop, reorder_block_iter_var and hide_buffer_access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import are_constant
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Replace, substitute
from spcomp.ir.stmt import For, Let
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_block, find_loop, inside_lets, replace_stmt
from spcomp.schedule.nests.values import starts_inside
from spcomp.schedule.steps.base import Makes, Step


@dataclass(frozen=True, slots=True)
class LiftLoop(Step):
    """``block: for k in n: s  ->  for k in n: block: s``.

    Legal where the loop is all that the block around it holds, but for lets, which then stand in
    each iteration; its range does not depend on what the block or they bind, it does not write
    what they read, and nothing of the block itself (a condition, an init) would run again.
    Source: SparseTIR's lift_loop.
    """

    name: ClassVar[str] = "lift_loop"
    loop: str

    def plan(self, func: Func) -> tuple[Block, For]:
        """Return the block, and the loop that is its body."""
        loop = find_loop(func, self.loop, self)
        block = block_around(func, loop)
        if block is None:
            raise self.error("no block holds just this loop", loop)
        if block.init is not None or block.where is not None:
            raise self.error(f"block {block.name} has an init or a condition", loop)
        lets = _lets_of(block)
        if not are_constant(tuple(let.value for let in lets), loop):
            raise self.error("it writes what is read before it", loop)
        bound = {it.var for it in block.iters} | {let.var for let in lets}
        if not from_zero(loop) or variables(loop.end) & bound:
            raise self.error("its range depends on the block", loop)
        if starts_inside(func, loop):
            raise self.error("it drives a reduction that starts inside", loop)
        return block, loop

    def rewrite(self, func: Func, plan: tuple[Block, For]) -> Func:
        """Return *func* with the loop around the block."""
        block, loop = plan
        it = BlockIter(Names(func).var(f"v{loop.var.name}"), loop.end, loop.var)
        body = Replace(loop, substitute(loop.body, {loop.var: it.var})).rewrite(block.body)
        inside = block.replace(iters=(*block.iters, it), body=body)
        return replace_stmt(func, block, loop.replace(body=inside))


@dataclass(frozen=True, slots=True)
class ReorderBlockIterVar(Step):
    """``block (va, vb): s  ->  block (vb, va): s``: its iters in another order.

    *new_order*: the old places of the iters, each once, in their new order. Iters name the loops
    around the block, but do not say in which order these run, so this is always legal.
    Source: TVM's reorder_block_iter_var.
    """

    name: ClassVar[str] = "reorder_block_iter_var"
    makes: ClassVar[Makes] = "blocks"
    block: str
    new_order: tuple[int, ...]

    def plan(self, func: Func) -> Block:
        """Return the block."""
        block = find_block(func, self.block, self)
        places = range(len(block.iters))
        if not are_places(self.new_order, len(places)) or len(self.new_order) != len(places):
            raise self.error(f"the order is not one of the {len(places)} iters of the block", block)
        return block

    def rewrite(self, func: Func, plan: Block) -> Func:
        """Return *func* with the iters of the block in the new order."""
        iters = tuple(plan.iters[place] for place in self.new_order)
        return replace_stmt(func, plan, plan.replace(iters=iters))


@dataclass(frozen=True, slots=True)
class HideBufferAccess(Step):
    """``block {reads A, B}: s  ->  block {reads A}: s``: the block no longer declares some regions.

    *buf_type*: ``read`` or ``write``; *indices*: places in the list of these regions. Always
    legal: regions are declarations, and legality is decided by what the statements touch. Source:
    SparseTIR's hide_buffer_access.
    """

    name: ClassVar[str] = "hide_buffer_access"
    makes: ClassVar[Makes] = "blocks"
    block: str
    buf_type: str
    indices: tuple[int, ...]

    def plan(self, func: Func) -> Block:
        """Return the block."""
        block = find_block(func, self.block, self)
        if self.buf_type not in ("read", "write"):
            raise self.error(f"{self.buf_type!r} is neither read nor write", block)
        regions = getattr(block, f"{self.buf_type}s")
        if not are_places(self.indices, len(regions)):
            why = f"the block declares {len(regions)} {self.buf_type}s, counted from 0"
            raise self.error(why, block)
        return block

    def rewrite(self, func: Func, plan: Block) -> Func:
        """Return *func* with fewer regions on the block."""
        what = f"{self.buf_type}s"
        regions = getattr(plan, what)
        remaining = tuple(region for k, region in enumerate(regions) if k not in self.indices)
        return replace_stmt(func, plan, plan.replace(**{what: remaining}))


def are_places(places: tuple[int, ...], count: int) -> bool:
    """Whether *places* are distinct indices of a list of *count* items."""
    valid = set(range(count))
    return all(isinstance(k, int) and k in valid for k in places) and len({*places}) == len(places)


def block_around(func: Func, loop: For) -> Block | None:
    """Return the block that holds just *loop*, and lets around it, if there is one."""
    blocks = (n for n in walk(func.body, skip=Expr) if isinstance(n, Block))
    return next((block for block in blocks if inside_lets(block.body) is loop), None)


def _lets_of(block: Block) -> list[Let]:
    """Return the lets around what *block* holds, outermost first."""
    lets, stmt = [], block.body
    while isinstance(stmt, Let):
        lets.append(stmt)
        stmt = stmt.body
    return lets
