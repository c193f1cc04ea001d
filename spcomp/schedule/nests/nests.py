"""What steps share: finding loops, copying statements with names of their own, perfect nests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from operator import is_not
from typing import Any

from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.copies import Fresh as Fresh
from spcomp.ir.analysis.copies import can_copy as can_copy
from spcomp.ir.analysis.exprs import from_zero
from spcomp.ir.expr import Const, Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, seq
from spcomp.ir.visitor import REMEMBERED, children, gathered, holds, walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.steps.base import the_one


def find_loop(func: Func, name: str, step: object, span: Span | None) -> For:
    """Return the loop called *name*; raises ScheduleError unless there is one."""
    if not isinstance(func, PosFunc):
        raise ScheduleError(
            f"{step}: {func.name} has no loops at this level",
            span,
            hint="loops exist in position space: lower the sparse iterations first",
        )
    loops = ((loop.var.name, loop) for loop in loops_of(func.body))
    return the_one(loops, name, f"{step}: no loop {name!r} in {func.name}", "loops", span)


def runs_once(loop: For) -> bool:
    """Whether *loop* runs once, for zero."""
    return from_zero(loop) and isinstance(loop.end, Const) and loop.end.value == 1


def find_block(func: Func, name: str, step: object, span: Span | None) -> Block:
    """Return the block called *name*; raises ScheduleError unless there is one."""
    blocks = ((block.name, block) for block in blocks_of(func.body))
    return the_one(blocks, name, f"{step}: no block {name!r} in {func.name}", "blocks", span)


@gathered
def blocks_of(node: Node) -> tuple[Block, ...]:
    """The blocks in the statement *node*, outer ones first."""
    return (node,) if isinstance(node, Block) else ()


def way_to(top: Stmt, block: Block) -> tuple[Stmt, ...]:
    """Return the statements from *top* down to *block*, both included; none if it is not there.

    The way leads through loops, lets, allocations, conditions and lists, not into other blocks.
    """
    if top is block:
        return (top,)
    match top:
        case For(body=body) | Let(body=body) | Alloc(body=body):
            parts: tuple[Stmt | None, ...] = (body,)
        case If(then=then, otherwise=otherwise):
            parts = (then, otherwise)
        case Seq(body=body):
            parts = body
        case _:
            parts = ()
    ways = (way_to(part, block) for part in parts if part is not None)
    below = next(filter(None, ways), ())
    return (top, *below) if below else ()


class Replace(Rewriter):
    """Puts *new* in the place of the node *old*."""

    def __init__(self, old: Node, new: Node) -> None:
        self.old, self.new = old, new
        self.deep = isinstance(old, Expr)  # expressions hold no statement

    def visit(self, node: Node) -> Node:
        """Stop at the node looked for."""
        if node is self.old:
            return self.new
        return super().visit(node) if self.deep or not isinstance(node, Expr) else node


def replaced(func: Func, old: Stmt, new: Stmt) -> Func:
    """Return *func* with *new* in the place of *old*; only what leads there is looked at."""
    body = _swapped(func.body, old, new)
    return func if body is func.body else func.replace(body=body)


def _swapped(node: Any, old: Stmt, new: Stmt) -> Any:
    if node is old:
        return new
    held = holds(node)
    for name in held:
        child = getattr(node, name)
        parts = child if isinstance(child, tuple) else (child,)
        sole = len(held) == len(parts) == 1  # there is no choice, and what is there is known below
        made = [
            part and (_swapped(part, old, new) if sole or old in _within(part) else part)
            for part in parts
        ]
        if not any(map(is_not, made, parts)):
            continue
        if isinstance(node, Seq):
            return seq(*made)
        return node.replace(**{name: tuple(made) if child is parts else made[0]})
    return node


@lru_cache(maxsize=REMEMBERED)
def _within(node: Node) -> frozenset[Node]:
    """The statement *node* and those below it."""
    return frozenset((node,)).union(*map(_within, children(node)))


def chain(loop: For) -> tuple[list[For], Stmt]:
    """Return the loops nested perfectly in *loop*, itself first, and what the last one holds."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    return loops, loops[-1].body


def nest(loops: list[For], body: Stmt) -> Stmt:
    """Return *body* inside *loops*, outermost first."""
    for loop in reversed(loops):
        body = loop.replace(body=body)
    return body


@lru_cache(maxsize=4)  # of one function many questions are asked
def reduction_loops(func: Func) -> set[Var]:
    """The variables of loops that drive a reduction iter of some block; not to be changed."""
    return set(_driving(func.body))


@gathered
def _driving(node: Node) -> Iterator[Var]:
    """Yield the variables that reduction iters of *node* alone are computed from."""
    if isinstance(node, Block):
        for own in node.iters:
            if own.kind == "R":
                yield from (v for v in walk(own.value) if isinstance(v, Var))
