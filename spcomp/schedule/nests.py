"""What steps share: finding loops, copying statements with names of their own, perfect nests."""

from __future__ import annotations

from typing import Any

from spcomp.errors import ScheduleError, Span
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge, PosFunc
from spcomp.ir.stmt import Alloc, For, Func, Let, Seq, Stmt, seq
from spcomp.ir.visitor import Rewriter, walk
from spcomp.passes.names import Names
from spcomp.schedule.dependence import loops_of
from spcomp.schedule.step import known


def find_loop(func: Func, name: str, step: object, span: Span | None) -> For:
    """Return the loop called *name*; raises ScheduleError if there is none, or no loops yet."""
    if not isinstance(func, PosFunc):
        raise ScheduleError(
            f"{step}: {func.name} has no loops at this level",
            span,
            hint="loops exist in position space: lower the sparse iterations first",
        )
    loops = {loop.var.name: loop for loop in loops_of(func.body)}
    if name not in loops:
        raise ScheduleError(
            f"{step}: no loop {name!r} in {func.name}", span, hint=known(loops, "loops")
        )
    return loops[name]


class Replace(Rewriter):
    """Puts *new* in the place of the node *old*."""

    def __init__(self, old: Node, new: Node) -> None:
        self.old, self.new = old, new

    def visit(self, node: Node) -> Node:
        """Stop at the node looked for."""
        return self.new if node is self.old else super().visit(node)

    def visit_Seq(self, stmt: Seq) -> Node:
        """Keep lists of statements flat."""
        new = self.visit_Node(stmt)
        assert isinstance(new, Seq)
        return new if new is stmt else seq(*new.body)


def replaced(func: Func, old: Stmt, new: Stmt) -> Func:
    """Return *func* with *new* in the place of *old*."""
    return func.replace(body=Replace(old, new).rewrite(func.body))


class Fresh(Rewriter):
    """Copies a statement: every name it binds is new, so that the copy may stand beside it."""

    def __init__(self, names: Names, suffix: str, values: dict[Var, Expr]) -> None:
        self.names, self.suffix, self.values = names, suffix, dict(values)

    def _fresh(self, var: Var) -> Var:
        new = self.names.var(f"{var.name}{self.suffix}", var.dtype)
        self.values[var] = new
        return new

    def visit_Var(self, var: Var) -> Node:
        """Return what the name stands for in the copy."""
        return self.values.get(var, var)

    def visit_For(self, loop: For) -> Node:
        """Copy a loop with what it binds."""
        begin, end = self.rewrite(loop.begin), self.rewrite(loop.end)
        var = self._fresh(loop.var)
        return loop.replace(var=var, begin=begin, end=end, body=self.rewrite(loop.body))

    def visit_Let(self, let: Let) -> Node:
        """Copy a let with what it binds."""
        value = self.rewrite(let.value)
        return let.replace(var=self._fresh(let.var), value=value, body=self.rewrite(let.body))

    def visit_Block(self, block: Block) -> Node:
        """Copy a block with what it binds."""
        iters: list[Any] = [
            i.replace(extent=self.rewrite(i.extent), value=self.rewrite(i.value))
            for i in block.iters
        ]
        iters = [i.replace(var=self._fresh(i.var)) for i in iters]
        changes: dict[str, Any] = {"iters": tuple(iters), "name": f"{block.name}{self.suffix}"}
        for name in ("init", "body", "where"):
            part = getattr(block, name)
            changes[name] = None if part is None else self.rewrite(part)
        for name in ("reads", "writes"):
            changes[name] = tuple(self.rewrite(region) for region in getattr(block, name))
        return block.replace(**changes)


def can_copy(stmt: Stmt) -> bool:
    """Whether *stmt* binds nothing but loops, lets and block iters: what Fresh knows."""
    return not any(isinstance(node, (Merge, Alloc)) for node in walk(stmt))


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


def reduction_loops(func: Func) -> set[Var]:
    """The variables of loops that drive a reduction iter of some block."""
    found: set[Var] = set()
    for node in walk(func.body, skip=Expr):
        if isinstance(node, Block):
            for own in node.iters:
                if own.kind == "R":
                    found |= {v for v in walk(own.value) if isinstance(v, Var)}
    return found
