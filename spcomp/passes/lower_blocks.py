"""II to II: blocks dissolve into loops; an init goes before the loop that starts to reduce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block, PosFunc
from spcomp.ir.stmt import For, If, Let, Seq, Stmt, seq
from spcomp.ir.visitor import Rewriter, substitute
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.names import Names
from spcomp.passes.positions import conjuncts
from spcomp.passes.scope import variables


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
    """A loop, or a let, around the statement at hand; *inits* go before the loop."""

    node: For | Let
    inits: list[Stmt] = field(default_factory=list)


class _LowerBlocks(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.around: list[_Around] = []  # since the enclosing block, outermost first

    def visit_For(self, loop: For) -> Node:
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

    def visit_Seq(self, stmt: Seq) -> Node:
        new = self.visit_Node(stmt)
        assert isinstance(new, Seq)
        return new if new is stmt else seq(*new.body)

    def visit_Block(self, block: Block) -> Node:
        outer, self.around = self.around, []
        body = self.rewrite(block.body)
        init = None if block.init is None else self.rewrite(block.init)
        self.around = outer
        values = block.values
        body = substitute(body, values)
        if init is not None:
            body = self._place(block, substitute(init, values), body)
        if block.where is not None:
            body = If(substitute(block.where, values), body, span=block.span)
        return body

    def _place(self, block: Block, init: Stmt, body: Stmt) -> Stmt:
        """Put *init* before the outermost loop that drives a reduction; before *body* if none."""
        reduced = self._drivers([i.value for i in block.iters if i.kind == "R"])
        start = next((k for k, a in enumerate(self.around) if a.node.var in reduced), None)
        if start is None:
            return seq(init, body)
        values = block.values
        spatial = self._drivers([i.value for i in block.iters if i.kind == "S"]) | variables(init)
        nest = init
        if block.where is not None:
            for term in reversed(conjuncts(substitute(block.where, values))):
                if not self._drivers([term]) & reduced:
                    nest = If(term, nest)
        for around in reversed(self.around[start:]):
            nest = self._again(around.node, nest, spatial, reduced)
        self.around[start].inits.append(nest)
        return body

    def _again(self, node: For | Let, nest: Stmt, spatial: set[Var], reduced: set[Var]) -> Stmt:
        """Return *nest* inside a copy of *node* if the init depends on it."""
        if node.var in reduced or node.var not in spatial:
            return nest
        var = self.names.var(node.var.name, node.var.dtype)
        nest = substitute(nest, {node.var: var})
        if isinstance(node, Let):
            return Let(var, node.value, nest, span=node.span)
        return node.replace(var=var, body=nest)

    def _drivers(self, values: list[Expr]) -> set[Var]:
        """The loop variables that *values* depend on, through lets too."""
        found: set[Var] = set()
        for value in values:
            found |= variables(value)
        for around in reversed(self.around):
            if isinstance(around.node, Let) and around.node.var in found:
                found |= variables(around.node.value)
        return found
