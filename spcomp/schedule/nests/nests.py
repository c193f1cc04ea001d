"""Under the steps: find loops and blocks by name, replace statements, perfect nests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import is_not
from typing import Any

from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.copies import Fresh as Fresh
from spcomp.ir.analysis.exprs import from_zero
from spcomp.ir.expr import Const, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import FlatFunc, PosFunc
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, seq
from spcomp.ir.visitor import REMEMBERED, children, collector, holds, walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.steps.base import find_named


def find_loop(func: Func, name: str, step: object) -> For:
    """Return the loop called *name*; raises ScheduleError unless exactly one has the name."""
    if not isinstance(func, PosFunc):
        hint = "loops exist in position space: lower the sparse iterations first"
        if isinstance(func, FlatFunc):
            hint = "buffers are flat already: apply the steps before lower_sparse_buffer()"
        raise ScheduleError(f"{step}: {func.name} has no loops at this level", hint=hint)
    loops = ((loop.var.name, loop) for loop in loops_of(func.body))
    return find_named(loops, name, f"{step}: no loop {name!r} in {func.name}", "loops")


def runs_once(loop: For) -> bool:
    """Whether *loop* runs exactly once, for the value 0."""
    return from_zero(loop) and isinstance(loop.end, Const) and loop.end.value == 1


def find_block(func: Func, name: str, step: object, span: Span | None = None) -> Block:
    """Return the block called *name*; raises ScheduleError unless exactly one has the name."""
    blocks = ((block.name, block) for block in blocks_of(func.body))
    return find_named(blocks, name, f"{step}: no block {name!r} in {func.name}", "blocks", span)


@collector
def blocks_of(node: Node) -> tuple[Block, ...]:
    """Return the blocks in the statement *node*, outer ones first."""
    return (node,) if isinstance(node, Block) else ()


def path_down(top: Stmt, block: Block) -> tuple[Stmt, ...]:
    """Return the statements from *top* down to *block*, both included; () if it is not there.

    The path leads through loops, lets, allocations, conditions and lists, not into other blocks.
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
    ways = (path_down(part, block) for part in parts if part is not None)
    below = next(filter(None, ways), ())
    return (top, *below) if below else ()


def replace_stmt(func: Func, old: Stmt, new: Stmt) -> Func:
    """Return *func* with *new* in place of *old*; only the nodes above *old* are visited."""
    body = _replace(func.body, old, new)
    return func if body is func.body else func.replace(body=body)


def _replace(node: Any, old: Stmt, new: Stmt) -> Any:
    if node is old:
        return new
    fields = holds(node)
    for name in fields:
        child = getattr(node, name)
        parts = child if isinstance(child, tuple) else (child,)
        sole = (
            len(fields) == len(parts) == 1
        )  # there is no choice, and what is there is known below
        children = [
            part and (_replace(part, old, new) if sole or old in _within(part) else part)
            for part in parts
        ]
        if not any(map(is_not, children, parts)):
            continue
        if isinstance(node, Seq):
            return seq(*children)
        return node.replace(**{name: tuple(children) if child is parts else children[0]})
    return node


@lru_cache(maxsize=REMEMBERED)
def _within(node: Node) -> frozenset[Node]:
    """Return the statement *node* and those below it."""
    return frozenset((node,)).union(*map(_within, children(node)))


def chain(loop: For) -> tuple[list[For], Stmt]:
    """Return *loop* and the loops nested perfectly in it, and the body of the innermost."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    return loops, loops[-1].body


def inside_lets(stmt: Stmt) -> Stmt:
    """Return what is inside the lets of *stmt*."""
    while isinstance(stmt, Let):
        stmt = stmt.body
    return stmt


def nest(loops: Sequence[For], body: Stmt) -> Stmt:
    """Return *body* inside *loops*, outermost first."""
    for loop in reversed(loops):
        body = loop.replace(body=body)
    return body


@lru_cache(maxsize=4)  # many steps ask this of the same function
def reduction_loops(func: Func) -> set[Var]:
    """Return the variables of loops that drive a reduction of some block; do not change the set."""
    return set(_reduction_vars(func.body))


@collector
def _reduction_vars(node: Node) -> Iterator[Var]:
    """Yield the variables in the values of the reduction iters of *node* itself."""
    if isinstance(node, Block):
        for it in node.iters:
            if it.kind == "R":
                yield from (v for v in walk(it.value) if isinstance(v, Var))
