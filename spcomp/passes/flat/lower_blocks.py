"""II to II: blocks dissolve into loops; an init goes before the loop that starts to reduce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from spcomp.errors import LoweringError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import conjuncts, may_fail, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr, UnOp, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, If, Let, Stmt, Store, While, seq
from spcomp.ir.visitor import walk
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class LowerBlocks(FuncPass):
    """``for j, k: block(S k, R j, init, s)  ->  for k: init; for j, k: s``."""

    name: ClassVar[str] = "lower_blocks"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION

    def run_func(self, func: PosFunc) -> PosFunc:
        """Return *func* without blocks."""
        body = _LowerBlocks(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


@dataclass(eq=False, slots=True)
class _Around:
    """A loop, a let or a side of an if around the statement at hand; *inits* go before a loop."""

    node: For | While | Let | If
    inits: list[Stmt] = field(default_factory=list)
    holds: bool = True  # it is the side where the condition does


class _Permit(Rewriter):
    """Lets iterations share the elements that stores update."""

    def visit_Store(self, store: Store) -> Node:
        return store if as_reduction(store) is None else store.replace(atomic=True)


class _LowerBlocks(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.around: list[_Around] = []  # since the enclosing block, outermost first

    def visit_For(self, loop: For) -> Node:
        return self._loop(loop)

    def visit_While(self, loop: While) -> Node:
        return self._loop(loop)

    def _loop(self, loop: For | While) -> Stmt:
        self.around.append(_Around(loop))
        new = self.visit_Node(loop)
        inits = self.around.pop().inits
        assert isinstance(new, Stmt)
        return seq(*inits, new)

    def visit_Let(self, let: Let) -> Node:
        self.around.append(_Around(let))
        new = self.visit_Node(let)
        self.around.pop()
        return new

    def visit_If(self, stmt: If) -> Node:
        sides: list[Stmt | None] = []
        for side, holds in ((stmt.then, True), (stmt.otherwise, False)):
            self.around.append(_Around(stmt, holds=holds))
            sides.append(None if side is None else self.rewrite(side))
            self.around.pop()
        if sides == [stmt.then, stmt.otherwise]:
            return stmt
        return stmt.replace(then=sides[0], otherwise=sides[1])

    def visit_Block(self, block: Block) -> Node:
        outer, self.around = self.around, []
        body = self.rewrite(block.body)
        if dict(block.attrs).get("atomic"):
            body = _Permit().rewrite(body)
        init = None if block.init is None else self.rewrite(block.init)
        self.around = outer
        values = block.values
        once = self._divisions(block)
        body = substitute(body, {**values, **once})
        for own, let in once.items():
            body = Let(let, values[own], body)
        if init is not None:
            body = self._place(block, substitute(init, values), body)
        if block.where is not None:
            body = If(substitute(block.where, values), body, span=block.span)
        return body

    def _divisions(self, block: Block) -> dict[Var, Var]:
        """Return names for the iters that loops inside *block* would divide for, again and again.

        One that may fail is not moved out of a loop that may run no times.
        """
        if not any(isinstance(n, (For, While)) for n in walk(block.body, skip=Expr)):
            return {}
        divided = (own for own in block.iters if may_fail(own.value))
        return {own.var: self.names.var(own.var.name) for own in divided}

    def _place(self, block: Block, init: Stmt, body: Stmt) -> Stmt:
        """Put *init* before the outermost loop that drives a reduction; before *body* if none."""
        reduced = self._drivers([i.value for i in block.iters if i.kind == "R"])
        start = next((k for k in range(len(self.around)) if self._moved(k) & reduced), None)
        if start is None:
            return seq(init, body)
        inside = self.around[start:]
        needed = self._needed(block, init, inside)
        lost = {
            var
            for k in range(start, len(self.around))
            for var in self._moved(k)
            if var in reduced or var not in needed or isinstance(self.around[k].node, While)
        }
        nest = init
        if block.where is not None:
            where = conjuncts(substitute(block.where, block.values))
            nest = self._under(self._without(lost, where), nest, needed)
        for around in reversed(inside):
            if isinstance(around.node, If):
                nest = self._under(self._known(around.node, lost, holds=around.holds), nest, needed)
            elif not isinstance(around.node, While):
                nest = self._again(around.node, nest, needed, lost)
        if variables(nest) & lost:
            raise LoweringError(
                f"where block {block.name} starts its reduction depends on what it reduces over",
                block.span,
            )
        self.around[start].inits.append(nest)
        return body

    def _needed(self, block: Block, init: Stmt, inside: list[_Around]) -> set[Var]:
        """Return the variables that say which elements *init* is for, and how far these range."""
        needed = self._drivers([i.value for i in block.iters if i.kind == "S"]) | variables(init)
        for around in reversed(inside):
            if isinstance(around.node, For) and around.node.var in needed:
                needed |= self._drivers([around.node.begin, around.node.end])
        return needed

    def _without(self, lost: set[Var], terms: list[Expr]) -> list[Expr]:
        """Return those of *terms* that no variable of *lost* drives."""
        return [term for term in terms if not self._drivers([term]) & lost]

    def _known(self, branch: If, lost: set[Var], *, holds: bool) -> list[Expr]:
        """Return terms that hold on a side of *branch*, those without variables that are *lost*."""
        terms = conjuncts(branch.cond)
        known = self._without(lost, terms)
        if holds:
            return known
        return [UnOp("not", branch.cond)] if len(known) == len(terms) else []

    def _under(self, terms: list[Expr], nest: Stmt, needed: set[Var]) -> Stmt:
        """Return *nest* where *terms* hold; what they use is needed, too."""
        for term in reversed(terms):
            nest = If(term, nest)
        needed |= self._drivers(terms)
        return nest

    def _again(self, node: For | Let, nest: Stmt, needed: set[Var], lost: set[Var]) -> Stmt:
        """Return *nest* inside a copy of *node* if it depends on it."""
        if node.var in lost or node.var not in needed:
            return nest
        var = self.names.var(node.var.name, node.var.dtype)
        nest = substitute(nest, {node.var: var})
        if isinstance(node, Let):
            return Let(var, node.value, nest, span=node.span)
        return node.replace(var=var, body=nest)

    def _moved(self, place: int) -> set[Var]:
        """The variables that change from one iteration to the next of the loop at *place*."""
        loop = self.around[place].node
        if isinstance(loop, For):
            return {loop.var}
        found: set[Var] = set()
        if isinstance(loop, While):
            written = {memory_of(n.buffer) for n in walk(loop) if isinstance(n, Store)}
            for around in self.around[place + 1 :]:
                if isinstance(around.node, Let) and _depends(around.node.value, found, written):
                    found.add(around.node.var)
        return found

    def _drivers(self, values: list[Expr]) -> set[Var]:
        """The loop variables that *values* depend on, through lets too."""
        found: set[Var] = set()
        for value in values:
            found |= variables(value)
        for around in reversed(self.around):
            if isinstance(around.node, Let) and around.node.var in found:
                found |= variables(around.node.value)
        return found


def _depends(value: Expr, moved: set[Var], written: set[object]) -> bool:
    """Whether *value* uses a variable that is *moved*, or what lies in memory that is *written*."""
    reads = (n for n in walk(value) if isinstance(n, (Load, Search)))
    return bool(variables(value) & moved) or any(memory_of(n.buffer) in written for n in reads)
